"""Products of bf16 and i8 by instructions: against einsum in f64 and i32, AMX by functions."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
from emulated_amx import NATIVE, TILES, compiled
from executed import agrees, needs_avx512
from kernel_cases import in_blocks, tile_group
from product_cases import residual
from stream_harness import streamed

from stack.backends.mlir import jit
from stack.backends.mlir.printer import print_kernel
from stack.ir import DTYPES, Builder, Func, param, tensor
from stack.ir.axes import parse_rule
from stack.ir.data import decode, encode, round_bf16, storage_dtype
from stack.ir.space import einsum_text
from stack.ir.traits import is_stream
from stack.ir.types import BF16
from stack.passes.distribute import distribute_kernel
from stack.passes.policies.step_lowering import plain_nest
from stack.passes.steps.primitives import parse_steps, run_steps
from stack.passes.tiling.single_ops import alone
from stack.run.compile import compile_func
from stack.target import Cpu, as_cpu, cpu_at_hand, load

pytest.importorskip("torch_mlir")

Shape = tuple[int, ...]
has_vectors = pytest.mark.skipif(
    "avx512bf16" not in cpu_at_hand().features, reason="this CPU has no vdpbf16ps"
)

# rows, lanes and depths with and without a rest; both orders of memory; several contracted axes
SHAPES: list[tuple[str, Shape, Shape]] = [
    ("m k, k n -> m n", (70, 64), (64, 96)),
    ("m k, n k -> m n", (33, 32), (71, 32)),
    ("m k, k n -> m n", (41, 96), (96, 16)),
    ("m k, k n -> m n", (100, 128), (128, 300)),
    ("b s h d, b t h d -> b h s t", (2, 40, 3, 32), (2, 70, 3, 32)),
    ("b h s t, b t h d -> b s h d", (2, 3, 64, 64), (2, 64, 3, 16)),
    ("b s h d, h d n -> b s n", (2, 40, 3, 64), (3, 64, 130)),
    ("m k, n k -> m n", (130, 3072), (100, 3072)),
]
VECTORS_ALONE: list[tuple[str, Shape, Shape]] = [
    ("m k, k n -> m n", (50, 66), (66, 100)),
    ("m k, n k -> m n", (33, 34), (17, 34)),
]


def check(rule: str, first: Shape, second: Shape, cpu: Cpu, rng: np.random.Generator) -> str:
    """The text of a product, after its values have proved right."""
    values = [round_bf16(rng.normal(size=s).astype(np.float32)) for s in (first, second)]
    want = np.einsum(einsum_text(parse_rule(rule)), *[v.astype(np.float64) for v in values])
    operands = [param(f"x{i}", tensor("bf16", *v.shape)) for i, v in enumerate(values)]
    dot = Builder().dot(*operands, rule=rule)
    text, run = compiled(distribute_kernel(tile_group(alone(dot), cpu)), cpu)
    stored = [encode(v, BF16) for v in values]
    out = encode(np.full(want.shape, np.nan, np.float32), BF16)
    run(*(a.ctypes.data for a in (*stored, out)))
    # sums are in f32 and rounded once: half a unit in the last of eight bits
    slack = 1e-6 * np.abs(want).max() * np.sqrt(first[-1])
    np.testing.assert_allclose(decode(out, BF16), want, rtol=2**-8, atol=slack)
    return text


@has_vectors
@pytest.mark.parametrize(("rule", "first", "second"), SHAPES + VECTORS_ALONE)
def test_vectors(rule: str, first: Shape, second: Shape, rng: np.random.Generator) -> None:
    assert "dpbf16ps.512" in check(rule, first, second, NATIVE, rng)


# a row has one contracted axis last, its lanes another; the first or the second has both orders
SEVERAL: list[tuple[str, Shape, Shape]] = [
    ("a b m, a b -> m", (11, 2, 5), (11, 2)),
    ("a b m, b a -> m", (12, 2, 16), (2, 12)),
    ("a b m, a b -> m", (8, 6, 40), (8, 6)),
    ("b a, a b m -> m", (4, 10), (10, 4, 33)),
    ("a b c m, c a b -> m", (2, 6, 4, 16), (4, 2, 6)),
    ("a b m, r b a -> r m", (6, 4, 32), (7, 4, 6)),
]


@pytest.mark.each
@pytest.mark.parametrize("dtype", ["bf16", "i8", "f16", "f32"])
@pytest.mark.parametrize(("rule", "first", "second"), SEVERAL)
def test_orders_of_contracted_axes(
    rule: str, first: Shape, second: Shape, dtype: str, rng: np.random.Generator
) -> None:
    numbers = (rng.integers(-4, 5, size=s).astype(DTYPES[dtype].numpy) for s in (first, second))
    x, y = numbers
    operands = [param(f"x{i}", tensor(dtype, *v.shape)) for i, v in enumerate((x, y))]
    b = Builder()
    made = tensor("i32" if dtype == "i8" else dtype, *np.einsum(rule.replace(" ", ""), x, y).shape)
    func = b.func("main", operands, (b.dot(*operands, rule=rule, type=made),))
    agrees(compile_func(func, "mlir", options={"cache": False}), func, (x, y), 2**-7)


@has_vectors
@pytest.mark.parametrize(("rule", "first", "second"), SHAPES)
def test_tiles(rule: str, first: Shape, second: Shape, rng: np.random.Generator) -> None:
    text = check(rule, first, second, TILES, rng)
    assert "tdpbf16ps" in text
    assert text.count("ldtilecfg") == text.count("tilerelease") == 1


@needs_avx512
@pytest.mark.parametrize(("rows", "lanes"), [(48, 32), (32, 48), (8, 32), (48, 48)])
def test_tiles_of_a_schedule_by_hand(rows: int, lanes: int, rng: np.random.Generator) -> None:
    """Tiles of sums that are not two by two in registers, and such as have fewer rows."""
    x, w = (round_bf16(rng.normal(size=s).astype(np.float32)) for s in ((96, 64), (64, 96)))
    operands = [param(n, tensor("bf16", *v.shape)) for n, v in (("x", x), ("w", w))]
    group = alone(Builder().dot(*operands, rule="m k, k n -> m n"))
    steps = (
        f"reorder i j; split j {lanes} tail=overlap; reorder j.1 i; split i {rows} tail=overlap;"
        " bind j.0 cores; bind i.0 cores; vectorize j.1; microkernel i.1 tdpbf16ps; pack p1"
    )
    kernel = run_steps(plain_nest(group, TILES), parse_steps(steps), TILES)
    text, run = compiled(distribute_kernel(kernel), TILES)
    assert "tdpbf16ps" in text
    stored = [encode(v, BF16) for v in (x, w)]
    out = encode(np.full((96, 96), np.nan, np.float32), BF16)
    run(*(a.ctypes.data for a in (*stored, out)))
    want = x.astype(np.float64) @ w.astype(np.float64)
    np.testing.assert_allclose(decode(out, BF16), want, rtol=2**-8, atol=1e-4)


# a panel of 32 KiB, one that a step more makes larger, and one tile beside none
@pytest.mark.parametrize(
    ("lanes", "depth", "tiles"), [(32, 512, 0), (32, 544, 2), (128, 768, 2), (16, 1056, 1)]
)
def test_tiles_ask_for_the_next_step_of_a_far_panel(lanes: int, depth: int, tiles: int) -> None:
    operands = [param(n, tensor("bf16", size, depth)) for n, size in (("x", 64), ("w", lanes))]
    group = alone(Builder().dot(*operands, rule="m k, n k -> m n"))
    kernel = distribute_kernel(tile_group(in_blocks(group, n=lanes, m=32), TILES))
    text = print_kernel(kernel, "k", target=TILES)
    near = re.findall(r'prefetch"\((%\w+)\) <\{cache = 1 : i32, hint = 3 ', text)
    found = re.search(r'tileloadd64"\(%\w+, (%\w+),', text)  # of the panel
    assert found is not None
    places = dict(re.findall(rf"(%\w+) = llvm\.getelementptr {found[1]}\[(\d+)\]", text))
    row = 2 * lanes
    want = [r * row + 32 * j for r in range(16, 32) for j in range(tiles)]
    assert [int(places[p]) for p in near] == want


# four neighbours at once, of which 37 is no whole number
INTEGERS: list[tuple[str, Shape, Shape]] = [
    ("m k, k n -> m n", (70, 64), (64, 96)),
    ("m k, n k -> m n", (33, 128), (71, 128)),
    ("b s h d, b t h d -> b h s t", (2, 40, 3, 64), (2, 70, 3, 64)),
    ("m k, k n -> m n", (40, 36), (36, 71)),
    ("m k, n k -> m n", (40, 37), (71, 37)),
    ("m k, n k -> m n", (4, 256), (71, 256)),
    ("m k, k n -> m n", (6, 64), (64, 64)),
    ("m k, n k -> m n", (20, 12288), (17, 12288)),
    ("m k, k n -> m n", (40, 4), (4, 71)),  # one group
    ("m k, k n -> m n", (40, 8), (8, 71)),
]


def check_integers(rule: str, first: Shape, second: Shape, cpu: Cpu) -> str:
    """The text of an exact product of all that 8 bits hold, the least number in rows."""
    rng = np.random.default_rng(0)
    values = [rng.integers(-128, 128, size=s).astype(np.int8) for s in (first, second)]
    for value in values:
        value.reshape(-1, value.shape[-1])[:2] = -128
    want = np.einsum(einsum_text(parse_rule(rule)), *[v.astype(np.int32) for v in values])
    operands = [param(f"x{i}", tensor("i8", *v.shape)) for i, v in enumerate(values)]
    dot = Builder().dot(*operands, rule=rule, type=tensor("i32", *want.shape))
    text, run = compiled(distribute_kernel(tile_group(alone(dot), cpu)), cpu)
    out = np.full(want.shape, -1, np.int32)
    run(*(a.ctypes.data for a in (*values, out)))
    np.testing.assert_array_equal(out, want)
    return text


@pytest.mark.parametrize(("rule", "first", "second"), INTEGERS)
def test_integers(rule: str, first: Shape, second: Shape) -> None:
    plain = replace(as_cpu(load("avx2")), arch="native")
    assert "vpdpbusd" not in check_integers(rule, first, second, plain)
    if "avx512vnni" in cpu_at_hand().features:
        text = check_integers(rule, first, second, NATIVE)
        assert ("vpdpbusd" in text) == (first[-1] % 4 == 0 and first[-1] > 4)


@pytest.mark.parametrize(("rule", "first", "second"), INTEGERS[:3])
def test_tiles_of_integers(rule: str, first: Shape, second: Shape) -> None:
    assert "tdpbssd" in check_integers(rule, first, second, TILES)


# one row, as many as have a tile, more than one tile; a depth without whole vectors
FEW_ROWS: list[tuple[str, Shape, Shape]] = [
    ("m k, n k -> m n", (2, 128), (40, 128)),
    ("m k, n k -> m n", (9, 64), (33, 64)),
    ("m k, n k -> m n", (16, 1024), (64, 1024)),
    ("m k, n k -> m n", (4, 38), (70, 38)),
    ("h m k, h n k -> h m n", (2, 5, 128), (2, 3, 128)),
    ("m h k, n h k -> m n", (3, 2, 64), (20, 2, 64)),
    ("m k, k n -> m n", (1, 64), (64, 96)),
    ("m k, k n -> m n", (3, 64), (64, 71)),
    ("m k, k n -> m n", (12, 64), (64, 71)),
]


@pytest.mark.each
@pytest.mark.parametrize("dtype", ["bf16", "f16", "f32", "f64"])
@pytest.mark.parametrize(("rule", "first", "second"), FEW_ROWS)
def test_few_rows(
    rule: str, first: Shape, second: Shape, dtype: str, rng: np.random.Generator
) -> None:
    cpu = cpu_at_hand()
    kind = tensor(dtype).dtype
    held = np.float32 if dtype == "bf16" else storage_dtype(kind)
    values = [decode(encode(rng.normal(size=s).astype(held), kind), kind) for s in (first, second)]
    want = np.einsum(einsum_text(parse_rule(rule)), *[v.astype(np.float64) for v in values])
    operands = [param(f"x{i}", tensor(dtype, *v.shape)) for i, v in enumerate(values)]
    dot = Builder().dot(*operands, rule=rule)
    _, run = compiled(distribute_kernel(tile_group(alone(dot), cpu)), cpu)
    stored = [encode(v, kind) for v in values]
    out = encode(np.full(want.shape, np.nan, held), kind)
    run(*(a.ctypes.data for a in (*stored, out)))
    digits = {"bf16": 8, "f16": 11, "f32": 21, "f64": 48}[dtype]
    np.testing.assert_allclose(
        decode(out, kind), want, rtol=2.0**-digits, atol=2.0**-digits * np.abs(want).max()
    )


@pytest.mark.parametrize(("rule", "first", "second"), FEW_ROWS)
def test_few_rows_of_integers(rule: str, first: Shape, second: Shape) -> None:
    check_integers(rule, first, second, cpu_at_hand())


@has_vectors
def test_a_depth_that_tiles_do_not_divide_goes_by_vectors(rng: np.random.Generator) -> None:
    text = check("m k, k n -> m n", (50, 66), (66, 100), TILES, rng)
    assert "dpbf16ps.512" in text
    assert "tdpbf16ps" not in text


@pytest.mark.parametrize("cpu", [NATIVE, TILES])
@has_vectors
def test_an_epilogue_reads_the_sums(cpu: Cpu, rng: np.random.Generator) -> None:
    shapes = [(45, 64), (64, 80), (45, 80)]
    values = [round_bf16(rng.normal(size=s).astype(np.float32)) for s in shapes]
    b = Builder()
    params = [param(f"p{i}", tensor("bf16", *s)) for i, s in enumerate(shapes)]
    block = b.block(params, [residual(b, *params)])
    outside = [param(f"x{i}", p.type) for i, p in enumerate(params)]
    group = Builder().fusion(*outside, kind="gemm", name="fused", blocks=(block,))
    _, run = compiled(distribute_kernel(tile_group(group, cpu)), cpu)
    stored = [encode(v, BF16) for v in values]
    out = encode(np.full((45, 80), np.nan, np.float32), BF16)
    run(*(a.ctypes.data for a in (*stored, out)))
    x, w, rest = (v.astype(np.float64) for v in values)
    np.testing.assert_allclose(decode(out, BF16), x @ w + rest, rtol=2**-7, atol=2e-2)


def test_another_machine_has_the_instructions_of_tiles() -> None:
    cpu = as_cpu(load("amx"))
    operands = [param("x", tensor("bf16", 64, 64)), param("w", tensor("bf16", 64, 64))]
    dot = Builder().dot(*operands, rule="m k, k n -> m n")
    kernel = distribute_kernel(tile_group(alone(dot), cpu))
    listing = jit.assembly(print_kernel(kernel, "k", target=cpu))
    if "no disassembly" in listing:
        pytest.skip("nothing disassembles here")
    assert "tdpbf16ps %tmm" in listing


@pytest.mark.parametrize(
    ("cpu", "shape", "width"),
    [
        pytest.param(NATIVE, (2, 64, 256), 64, marks=has_vectors),
        pytest.param(NATIVE, (2, 70, 131), 80, marks=has_vectors),
        pytest.param(NATIVE, (2, 20, 100), 33, marks=has_vectors),
        pytest.param(TILES, (2, 64, 256), 64, marks=has_vectors),
        pytest.param(TILES, (2, 100, 200), 64, marks=has_vectors),  # the last 72 keys
        pytest.param(TILES, (2, 64, 256), 40, marks=has_vectors),  # the last 8 columns
    ],
)
def test_both_products_of_a_stream(
    cpu: Cpu, shape: tuple[int, int, int], width: int, rng: np.random.Generator
) -> None:
    heads, rows, keys = shape
    shapes = [(heads, rows, width), (heads, keys, width), (heads, keys, width)]
    values = [round_bf16(rng.normal(size=s).astype(np.float32)) for s in shapes]
    values[0] = round_bf16(values[0] / np.sqrt(width).astype(np.float32))
    func, _ = streamed(attention(*shapes), "")
    (stream,) = (n for n in func.nodes if is_stream(n))
    text, run = compiled(distribute_kernel(tile_group(stream, cpu)), cpu)
    # 33 columns are not whole pairs of the scores: those use multiply-adds
    assert text.count('"llvm.x86.avx512bf16') > 0 or "tdpbf16ps" in text
    stored = [encode(v, BF16) for v in values]
    out = encode(np.full(shapes[0], np.nan, np.float32), BF16)
    run(*(a.ctypes.data for a in (*stored, out)))
    q, k, v = (x.astype(np.float64) for x in values)
    weights = np.exp(q @ k.swapaxes(1, 2))
    want = weights / weights.sum(-1, keepdims=True) @ v
    np.testing.assert_allclose(decode(out, BF16), want, rtol=2**-7, atol=2e-3)


def attention(q: Shape, k: Shape, v: Shape) -> Func:
    b = Builder()
    params = [param(n, tensor("bf16", *s)) for n, s in zip("qkv", (q, k, v), strict=True)]
    scores = b.dot(*params[:2], rule="h m d, h n d -> h m n")
    full = tensor("f32", *scores.shape)
    wide = b.cast(scores, type=full)
    e = b.exp(
        b.sub(wide, b.broadcast(b.reduce(wide, kind="max", axes=(2,)), axes=(0, 1), type=full))
    )
    total = b.broadcast(b.reduce(e, kind="sum", axes=(2,)), axes=(0, 1), type=full)
    weights = b.cast(b.div(e, total), type=scores.type)
    return b.func("attention", params, [b.dot(weights, params[2], rule="h m n, h n d -> h m d")])
