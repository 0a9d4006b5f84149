"""Matrix products with what follows them, for the GPU passes and the cuda backend."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from kernel_cases import program
from product_cases import causal, gate, residual, row_scale, two_results

from stack.demos.gemm_ladder import LADDER
from stack.ir import DTYPES, Builder, Func, Node, ops, param, parse, tensor
from stack.ir.axes import parse_rule
from stack.ir.data import round_bf16
from stack.ir.space import einsum_text
from stack.passes.gpu_layout.lower import lower_kernel
from stack.passes.tiling.single_ops import alone
from stack.rewrite import Pipeline
from stack.target import as_gpu, load

Shape = tuple[int, ...]
Build = Callable[..., Node | tuple[Node, ...]]

# primes, ones, tails of every axis; both orders of both operands; batches, heads, split depths
PRODUCTS: list[tuple[str, Shape, Shape]] = [
    ("m k, k n -> m n", (8, 32), (32, 128)),
    ("m k, k n -> m n", (7, 13), (13, 17)),
    ("m k, n k -> m n", (9, 37), (71, 37)),
    ("m k, n k -> m n", (67, 3), (100, 3)),
    ("k m, k n -> m n", (40, 9), (40, 64)),
    ("k m, n k -> m n", (40, 144), (48, 40)),
    ("m k, k n -> n m", (32, 7), (7, 64)),
    ("m k, k n -> m n", (1, 32), (32, 130)),
    ("m k, k n -> m n", (50, 1), (1, 64)),
    ("k, k n -> n", (32,), (32, 64)),
    ("b s k, h d k -> b h s d", (2, 9, 24), (3, 16, 24)),
    ("b s h d, b t h d -> b h s t", (2, 20, 3, 16), (2, 33, 3, 16)),
    ("b h s t, b t h d -> b s h d", (1, 2, 20, 33), (1, 33, 2, 16)),
    ("b g r s d, b g t d -> b g r s t", (1, 2, 3, 9, 8), (1, 2, 21, 8)),
    ("b s h d, n h d -> b s n", (2, 9, 3, 20), (70, 3, 20)),
    ("m k, k n -> m n", (130, 40), (40, 136)),
]


def bias_gelu(b: Builder, x: Node, w: Node, bias: Node) -> Node:
    y = b.dot(x, w, rule="m k, n k -> m n")
    y = b.add(y, b.broadcast(bias, axes=(1,), type=y.type))
    return b.mul(b.mul(y, 0.5), b.add(b.erf(b.mul(y, 0.70710678)), 1.0))


EPILOGUES: list[tuple[Build, list[Shape]]] = [
    (bias_gelu, [(9, 20), (100, 20), (100,)]),
    (bias_gelu, [(1, 33), (20, 33), (20,)]),
    (residual, [(40, 24), (24, 48), (40, 48)]),
    (residual, [(1, 20), (20, 64), (1, 64)]),
    (gate, [(13, 20), (33, 20), (13, 33)]),
    (row_scale, [(11, 20), (20, 50), (11,)]),
    (causal, [(2, 21, 8), (2, 21, 8)]),
    (two_results, [(9, 20), (20, 48)]),
]


def turn(b: Builder, x: Node) -> Node:
    return b.transpose(x, perm=(0, 2, 1))


def turn_and_add(b: Builder, x: Node, y: Node) -> Node:
    return b.add(b.exp(b.transpose(x, perm=(1, 0))), y)


def turn_both(b: Builder, x: Node, y: Node) -> Node:
    return b.sub(b.transpose(x, perm=(1, 0)), b.mul(b.transpose(y, perm=(1, 0)), 2.0))


def move_last_first(b: Builder, x: Node) -> Node:
    return b.neg(b.transpose(x, perm=(2, 0, 1)))


def gated(b: Builder, x: Node, first: Node, second: Node) -> Node:
    g = b.dot(x, first, rule="m k, n k -> m n")
    return b.mul(b.mul(g, b.sigmoid(g)), b.dot(x, second, rule="m k, n k -> m n"))


def mixed(b: Builder, x: Node, first: Node, second: Node) -> tuple[Node, ...]:
    g = b.dot(first, x, rule="n k, s r k -> s r n")
    u = b.dot(x, second, rule="s r k, k n -> s r n")
    return b.add(b.exp(g), u), u


def kept(b: Builder, x: Node, first: Node, second: Node, r: Node) -> tuple[Node, ...]:
    g = b.dot(x, first, rule="m k, k n -> m n")
    u = b.dot(x, second, rule="m k, k n -> m n")
    return g, u, b.add(b.mul(g, u), r)


def thrice(b: Builder, x: Node, *others: Node) -> Node:
    g, u, v = (b.dot(x, y, rule="m k, n k -> m n") for y in others)
    return b.add(b.mul(g, b.sigmoid(u)), v)


# products of one left operand
JOINED: list[tuple[Build, list[Shape]]] = [
    (gated, [(70, 300), (33, 300), (33, 300)]),
    (gated, [(1, 37), (130, 37), (130, 37)]),
    (gated, [(1, 700), (50, 700), (50, 700)]),
    (gated, [(53, 1), (67, 1), (67, 1)]),
    (mixed, [(2, 19, 257), (40, 257), (257, 40)]),
    (thrice, [(70, 100), (33, 100), (33, 100), (33, 100)]),
    (kept, [(33, 512), (512, 64), (512, 64), (33, 64)]),
]


# read across: through squares in shared memory
TURNED: list[tuple[Build, list[tuple[str | int, ...]]]] = [
    (turn, [("f32", 2, 40, 70)]),
    (turn, [("i64", 1, 32, 64)]),
    (turn_and_add, [("bf16", 40, 70), ("bf16", 70, 40)]),
    (turn_both, [("f32", 33, 64), ("f32", 33, 64)]),
    (move_last_first, [("f32", 5, 40, 17)]),
]


def product_of(rule: str, first: Shape, second: Shape, dtype: str) -> Node:
    """A group of one dot."""
    operands = [param("x0", tensor(dtype, *first)), param("x1", tensor(dtype, *second))]
    return alone(Builder().dot(*operands, rule=rule))


def epilogue_of(build: Build, shapes: list[Shape], dtype: str) -> Node:
    """A group of one dot and what follows it."""
    b = Builder()
    params = [param(f"p{i}", tensor(dtype, *s)) for i, s in enumerate(shapes)]
    made = build(b, *params)
    results = made if isinstance(made, tuple) else (made,)
    outside = [param(f"x{i}", tensor(dtype, *s)) for i, s in enumerate(shapes)]
    block = b.block(params, results)
    return Builder().fusion(*outside, kind="gemm", name=build.__name__, blocks=(block,))


def gpu_kernel(group: Node, schedule: str = "", target: str = "sm_90") -> Node:
    """The kernel of a group at the loop level of a GPU, with the given schedule or the model's."""
    return lower_kernel(block_kernel(group, schedule, target), as_gpu(load(target)))


def block_kernel(group: Node, schedule: str = "", target: str = "sm_90") -> Node:
    """The kernel of blocks of a group."""
    given = {"*": schedule} if schedule else {}
    passes = "schedule{loops=warps},blocks" if schedule else "blocks"
    made = Pipeline(passes).run(program(group), target=load(target), schedules=given).func
    (kernel,) = (n for n in made.nodes if n.op == "kernel")
    return kernel


def gpu_func(group: Node, schedule: str = "", target: str = "sm_90") -> Func:
    return program(gpu_kernel(group, schedule, target))


# the ladder's schedules by name, on the GPU that they are for
RUNGS = {rung.name: rung.schedule for rung in LADDER}


def floats(shape: Shape, dtype: str, rng: np.random.Generator) -> np.ndarray:
    """Random values as the interpreter holds them, small enough to be summed."""
    values = rng.normal(size=shape) / np.sqrt(shape[-1])
    held = values.astype(DTYPES[dtype].numpy)
    return round_bf16(held) if dtype == "bf16" else held


def einsum(rule: str, *arrays: np.ndarray) -> np.ndarray:
    """The product in f64."""
    return np.einsum(einsum_text(parse_rule(rule)), *[a.astype(np.float64) for a in arrays])


def several(found: object) -> tuple[np.ndarray, ...]:
    return tuple(found) if isinstance(found, tuple | list) else (np.asarray(found),)


# largest error of one kernel whose inputs are exact, relative to the largest result
TOLERANCE = {"f64": 1e-12, "f32": 1e-5, "f16": 2e-3, "bf16": 2e-2}


def assert_near(found: np.ndarray, want: np.ndarray, dtype: str) -> None:
    """Equal up to rounding; inf and nan where they belong, and what is no float as it is."""
    assert found.shape == want.shape
    if want.dtype.kind != "f":
        np.testing.assert_array_equal(found, want)
        return
    got, expected = found.astype(np.float64), want.astype(np.float64)
    finite = expected[np.isfinite(expected)]
    scale = max(1.0, float(np.abs(finite).max())) if finite.size else 1.0
    bound = TOLERANCE.get(dtype, TOLERANCE["f32"])
    np.testing.assert_allclose(got, expected, rtol=bound, atol=bound * scale)


def exact(made: Func | Node, arrays: Sequence[np.ndarray]) -> tuple[np.ndarray, ...]:
    """The results of a function or a group in f64."""
    text = str(made if isinstance(made, Func) else program(made))
    for name in ("bf16", "f16", "f32"):
        text = text.replace(f"{name}[", "f64[").replace(f":{name}", ":f64")
    wide = [a.astype(np.float64) if a.dtype.kind == "f" else a for a in arrays]
    with np.errstate(all="ignore"):
        return several(parse(text).interpret(*wide))


def assert_exact(
    found: object, made: Func | Node, arrays: Sequence[np.ndarray], dtype: str
) -> None:
    """All results near those in f64."""
    for got, want in zip(several(found), exact(made, arrays), strict=True):
        assert_near(got, want, dtype)


def backwards(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the iterations that run at the same time on a GPU from the last to the first."""
    forwards: Any = ops.OPS["loop"].evaluate

    def run(space: Any, node: Node, run: Any, *carried: Any) -> Any:
        if node.attrs["kind"] != "grid":
            return forwards(space, node, run, *carried)
        for i in reversed(range(node.blocks[0].params[0].attrs["extent"])):
            carried = run(node.blocks[0], (np.int64(i), *carried))
        return carried if len(carried) > 1 else carried[0]

    monkeypatch.setitem(ops.OPS, "loop", dataclasses.replace(ops.OPS["loop"], evaluate=run))
