"""Dots as native code: against einsum in f64, epilogues against the interpreter."""

from __future__ import annotations

import re

import numpy as np
import pytest
from kernel_cases import tile_group

import stack
from stack.backends.mlir import jit, sums
from stack.backends.mlir.printer import print_kernel
from stack.ir import Builder, Node, param, tensor
from stack.ir.axes import parse_rule
from stack.ir.space import einsum_text
from stack.passes.distribute import distribute_kernel
from stack.passes.tiling.single_ops import alone
from stack.run.compile import compile_func
from stack.target import cpu_at_hand

pytest.importorskip("torch_mlir")

Shape = tuple[int, ...]

SHAPES: list[tuple[str, Shape, Shape]] = [
    ("m k, k n -> m n", (64, 100), (100, 130)),
    ("m k, k n -> m n", (7, 13), (13, 17)),
    ("m k, n k -> m n", (67, 37), (71, 37)),
    ("m k, n k -> m n", (67, 3), (100, 3)),
    ("k m, k n -> m n", (40, 39), (40, 64)),
    ("k m, n k -> m n", (31, 53), (47, 31)),
    ("k m, k n -> m n", (601, 40), (601, 70)),  # each step has lines of its own, too many to keep
    ("m k, k n -> n m", (32, 7), (7, 64)),
    ("m k, k n -> m n", (1, 32), (32, 130)),
    ("m k, n k -> m n", (1, 33), (20, 33)),
    ("m k, k n -> m n", (50, 1), (1, 64)),
    ("k, k n -> n", (32,), (32, 64)),
    ("m k, k n -> m n", (19, 40), (40, 5)),
    ("m k, n k -> m n", (64, 33), (8, 33)),
    ("m k, n k -> m n", (30, 65), (1, 65)),
    ("b m k, b k n -> b m n", (2, 9, 20), (2, 20, 3)),
    ("b s k, h d k -> b h s d", (2, 40, 24), (3, 16, 24)),
    ("b s h d, b t h d -> b h s t", (2, 40, 3, 16), (2, 33, 3, 16)),
    ("b h s t, b t h d -> b s h d", (2, 3, 40, 33), (2, 33, 3, 16)),
    ("b g r s d, b g t d -> b g r s t", (2, 2, 3, 19, 8), (2, 2, 21, 8)),
    ("b s h d, n h d -> b s n", (2, 40, 3, 20), (70, 3, 20)),
    ("m k, n k -> m n", (130, 3072), (100, 3072)),
    ("b m k, k n -> b m n", (2, 70, 4096), (4096, 64)),
    ("k m b, k n b -> n b m", (16, 7, 4), (16, 4, 4)),  # rows are contiguous in a batch, not in k
]


def native(kernel: Node, arrays: list[np.ndarray], shape: Shape, dtype: type) -> np.ndarray:
    out = np.full(shape, 77, dtype)
    compiled = jit.build(print_kernel(kernel, "k"), ["k"])["k"]
    compiled(*[a.ctypes.data for a in (*arrays, out)])
    return out


@pytest.mark.each
@pytest.mark.parametrize(("rule", "first", "second"), SHAPES)
@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_dot(rule: str, first: Shape, second: Shape, dtype: str, rng: np.random.Generator) -> None:
    kind = np.float32 if dtype == "f32" else np.float64
    arrays = [rng.normal(size=s).astype(kind) for s in (first, second)]
    want = np.einsum(einsum_text(parse_rule(rule)), *[a.astype(np.float64) for a in arrays])
    operands = [param(f"x{i}", tensor(dtype, *a.shape)) for i, a in enumerate(arrays)]
    kernel = distribute_kernel(tile_group(alone(Builder().dot(*operands, rule=rule))))
    found = native(kernel, arrays, want.shape, kind)
    tolerance = 1e-3 if dtype == "f32" else 1e-10
    np.testing.assert_allclose(found, want, rtol=tolerance, atol=tolerance)


# rows that share lines; then too few steps, steps that share lines, and rows that are apart
@pytest.mark.parametrize(
    ("rule", "depth", "rows", "asks"),
    [
        ("k m, k n -> m n", 601, 40, True),
        ("k m, k n -> m n", 512, 40, False),
        ("k m, k n -> m n", 601, 8, False),
        ("m k, k n -> m n", 601, 40, False),
    ],
)
def test_a_turned_operand_is_asked_for(rule: str, depth: int, rows: int, asks: bool) -> None:
    shape = (depth, rows) if rule.startswith("k") else (rows, depth)
    operands = param("x", tensor("f32", *shape)), param("w", tensor("f32", depth, 128))
    text = print_kernel(
        distribute_kernel(tile_group(alone(Builder().dot(*operands, rule=rule)))), "k"
    )
    far = {sums.TURNED_AHEAD * rows + place for place in range(rows)}
    places = dict(re.findall(r"(%\w+) = llvm\.getelementptr %\w+\[(\d+)\]", text))
    found = [places.get(p) for p in re.findall(r'prefetch"\((%\w+)\)', text)]
    assert any(p is not None and int(p) in far for p in found) == asks, found


def fused(arrays: list[np.ndarray], transposed: bool) -> Node:
    """bias, SiLU, residual after a dot, as a group."""
    b = Builder()
    params = [param(f"p{i}", tensor("f32", *a.shape)) for i, a in enumerate(arrays)]
    x, w, bias, rest = params
    y = b.dot(x, w, rule="m k, n k -> m n" if transposed else "m k, k n -> m n")
    y = b.add(y, b.broadcast(bias, axes=(1,), type=y.type))
    y = b.add(b.mul(y, b.sigmoid(y)), rest)
    outside = [param(f"x{i}", p.type) for i, p in enumerate(params)]
    block = b.block(params, [y])
    return Builder().fusion(*outside, kind="gemm", name="fused", blocks=(block,))


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize(("m", "k", "n"), [(50, 70, 100), (3, 20, 64), (1, 20, 33), (70, 3072, 64)])
def test_epilogue(transposed: bool, m: int, k: int, n: int, rng: np.random.Generator) -> None:
    shapes = [(m, k), (n, k) if transposed else (k, n), (n,), (m, n)]
    arrays = [(rng.normal(size=s) / np.sqrt(s[-1])).astype(np.float32) for s in shapes]
    group = fused(arrays, transposed)
    b = Builder()
    want = b.func("main", list(group.args), [group]).interpret(*arrays)
    found = native(distribute_kernel(tile_group(group)), arrays, (m, n), np.float32)
    np.testing.assert_allclose(found, want, rtol=1e-4, atol=1e-4)


def test_inf_and_nan(rng: np.random.Generator) -> None:
    x, w = (rng.normal(size=s).astype(np.float32) for s in ((40, 20), (70, 20)))
    x[3, 5], x[8, 0], w[69, 2] = np.inf, np.nan, -np.inf
    operands = [param(f"x{i}", tensor("f32", *a.shape)) for i, a in enumerate((x, w))]
    dot = Builder().dot(*operands, rule="m k, n k -> m n")
    found = native(distribute_kernel(tile_group(alone(dot))), [x, w], (40, 70), np.float32)
    with np.errstate(all="ignore"):
        want = x.astype(np.float64) @ w.astype(np.float64).T
    np.testing.assert_allclose(found, want, rtol=1e-4, atol=1e-4)


def test_bf16_widens(rng: np.random.Generator) -> None:
    arrays = [rng.normal(size=s).astype(np.float32) for s in ((40, 20), (70, 20))]
    bits = [(a.view(np.uint32) >> 16).astype(np.uint16) for a in arrays]
    x, w = ((b.astype(np.uint32) << 16).view(np.float32).astype(np.float64) for b in bits)
    operands = [param(f"x{i}", tensor("bf16", *a.shape)) for i, a in enumerate(arrays)]
    dot = Builder().dot(*operands, rule="m k, n k -> m n")
    cpu = cpu_at_hand()
    kernel = distribute_kernel(tile_group(alone(dot), cpu))
    found = native(kernel, bits, (40, 70), np.uint16)
    wide = (found.astype(np.uint32) << 16).view(np.float32)
    np.testing.assert_allclose(wide, x @ w.T, rtol=1e-2, atol=1e-2)


def test_equal_kernels_have_equal_text() -> None:
    texts = set[str]()
    for names in (("a", "b"), ("x", "y")):
        operands = [param(n, tensor("f32", 64, 64)) for n in names]
        dot = Builder().dot(*operands, rule="m k, n k -> m n")
        texts.add(print_kernel(distribute_kernel(tile_group(alone(dot))), "k"))
    assert len(texts) == 1


@pytest.mark.parametrize("columns", [(), (1,), (9,)])
@pytest.mark.parametrize("kind", ["i8", "u8", "i16"])
def test_products_of_small_integers_do_not_wrap_around(kind: str, columns: tuple[int, ...]) -> None:
    """The products are exact in the type of the result, which is wider than the operands'."""
    right = "k n" if columns else "k"
    shape = ", ".join(map(str, (33, *columns)))
    made = f"{kind[0]}32[{', '.join(map(str, (5, *columns)))}]"
    func = stack.parse(
        f"func @f(%a: {kind}[5, 33], %b: {kind}[{shape}]) -> ({made}) at tensor {{\n"
        f'  %c = dot(%a, %b) {{rule="m k, {right} -> m{right[1:]}"}} : {made}\n'
        "  return %c\n}\n"
    )
    rng = np.random.default_rng()
    bounds = np.iinfo({"i8": np.int8, "u8": np.uint8, "i16": np.int16}[kind])
    most = min(bounds.max // 2, 8000)  # 33 products of 8000 x 8000 fit in 32 bits
    low = max(bounds.min // 2, -most)
    a, b = (rng.integers(low, most, p.shape).astype(bounds.dtype) for p in func.params)
    (found,) = compile_func(func, "mlir").run([a, b])
    np.testing.assert_array_equal(found, a.astype(np.int64) @ b.astype(np.int64))


# no blocks of equal size: a panel of 64 columns of f32 is more than a stack holds from 4099 on
@pytest.mark.parametrize("depth", [4093, 4099, 8191])
def test_prime_depths(depth: int, rng: np.random.Generator) -> None:
    x, w = (rng.normal(size=s).astype(np.float32) for s in ((70, depth), (depth, 128)))
    b = Builder()
    operands = param("x", tensor("f32", *x.shape)), param("w", tensor("f32", *w.shape))
    y = b.dot(*operands, rule="m k, k n -> m n")
    (found,) = compile_func(b.func("f", operands, [y]), "mlir").run([x, w])
    np.testing.assert_allclose(found, x.astype(np.float64) @ w, atol=1e-3)
