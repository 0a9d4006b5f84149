"""Long rows in one pass: sums kept place by place, hints for caches, values."""

from __future__ import annotations

import re

import numpy as np
import pytest
from gpu_cases import assert_near

from stack.ir import Builder, Func, Node, param, parse, tensor, verify
from stack.ir.data import round_bf16
from stack.passes.nest.emit import emit
from stack.passes.steps import online
from stack.passes.steps.loops import all_loops
from stack.rewrite import Pipeline

STREAM = "canonicalize,stream{min_axis=2},canonicalize"
ROWS = 2


def spread(b: Builder, x: Node, n: int) -> Node:
    return b.broadcast(x, axes=(0,), type=tensor("f32", ROWS, n))


def log_sum_exp(b: Builder, x: Node, n: int) -> tuple[Node, ...]:
    top = b.reduce(x, kind="max", axes=(1,))
    total = b.reduce(b.exp(b.sub(x, spread(b, top, n))), kind="sum", axes=(1,))
    return (b.add(b.log(total), top),)


def moments(b: Builder, x: Node, n: int) -> tuple[Node, ...]:
    mean = b.div(b.reduce(x, kind="sum", axes=(1,)), float(n))
    off = b.sub(x, spread(b, mean, n))
    return mean, b.div(b.reduce(b.mul(off, off), kind="sum", axes=(1,)), float(n))


def scaled(b: Builder, x: Node, n: int) -> tuple[Node, ...]:
    total = b.reduce(b.mul(x, x), kind="sum", axes=(1,))
    return (b.mul(x, spread(b, b.rsqrt(b.div(total, float(n))), n)),)


def standard(b: Builder, x: Node, n: int) -> tuple[Node, ...]:
    mean, variance = moments(b, x, n)
    return (b.mul(b.sub(x, spread(b, mean, n)), spread(b, b.rsqrt(b.add(variance, 1e-5)), n)),)


def exact(name: str, x: np.ndarray) -> tuple[np.ndarray, ...]:
    x = x.astype(np.float64)
    with np.errstate(all="ignore"):
        if name == "log_sum_exp":
            top = x.max(1, keepdims=True)
            return ((np.log(np.exp(x - top).sum(1)) + top[:, 0]),)
        if name == "moments":
            return x.mean(1), x.var(1)
        if name == "scaled":
            return (x / np.sqrt((x * x).mean(1, keepdims=True)),)
        return ((x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + 1e-5),)


BUILDS = {f.__name__: f for f in (log_sum_exp, moments, scaled, standard)}


def streamed(name: str, n: int) -> Func:
    b = Builder()
    x = param("x", tensor("f32", ROWS, n))
    return Pipeline(STREAM).run(b.func("main", [x], BUILDS[name](b, x, n))).func


def lowered(func: Func) -> Func:
    func = Pipeline("fuse,blocks,library").run(func).func
    verify(func)
    assert parse(str(func)) is func
    assert not [n for n in func.nodes if n.op in ("fusion", "stream")]
    return func


@pytest.mark.parametrize("n", [1, 2, 31, 8191, 8193, 40009])
@pytest.mark.parametrize("name", BUILDS)
def test_values(name: str, n: int, rng: np.random.Generator) -> None:
    x = rng.standard_normal((ROWS, n)).astype(np.float32)
    x[1] += 1e4 if name == "log_sum_exp" else 30
    found = lowered(streamed(name, n)).interpret(x)
    parts = found if isinstance(found, tuple) else (found,)
    for got, want in zip(parts, exact(name, x), strict=True):
        assert_near(np.asarray(got), want, "f32")


def test_inf_and_nan_stay_in_their_rows(rng: np.random.Generator) -> None:
    x = rng.standard_normal((ROWS, 20000)).astype(np.float32)
    x[0, 19999] = np.nan
    for name in BUILDS:
        found = lowered(streamed(name, 20000)).interpret(x)
        for got in found if isinstance(found, tuple) else (found,):
            assert np.isnan(np.asarray(got)[0]).any() and np.isfinite(np.asarray(got)[1]).all()
    x[0] = -np.inf
    got = np.asarray(lowered(streamed("log_sum_exp", 20000)).interpret(x))
    assert np.isnan(got[0])  # as -inf - -inf is


def scaled_of(name: str) -> list[online.RescaledSum | None]:
    """For each state in order whether it is a sum that only its own update reads."""
    (stream,) = [n for n in streamed(name, 40000).nodes if n.op == "stream"]
    block = next(loop for loop, _ in all_loops(emit(stream)) if len(loop.types) > 0).blocks[0]
    while not (states := online.states_of(block)):
        block = next(n for n in block.nodes if n.op == "loop").blocks[0]
    return [online.scaled(block, state) for state in states]


def test_which_sums_are_kept_for_each_lane() -> None:
    top, total = scaled_of("log_sum_exp")
    assert top is None and total is not None  # the sum reads the maximum
    assert total.factor is not None and total.addend is None
    assert scaled_of("scaled") == [online.RescaledSum()]
    *others, squares = scaled_of("moments")
    assert others[0] is None  # the squares read the mean
    assert squares is not None and squares.factor is None and squares.addend is not None


def test_a_row_that_is_read_twice_is_kept_in_the_cache() -> None:
    once = str(lowered(streamed("log_sum_exp", 40000)))
    assert "evict" not in once and "ahead=3" in once
    twice = str(lowered(streamed("scaled", 40000)))
    assert sorted(re.findall(r'evict="(\w+)"', twice)) == ["first", "first", "last"]
    assert "warps=32" in twice


def test_counts_of_16_bit_rows(rng: np.random.Generator) -> None:
    """Two reductions over one long axis share a loop; places are counted in 32 bits."""
    b = Builder()
    x, at = param("x", tensor("bf16", ROWS, 40000)), param("at", tensor("bf16", ROWS))
    same = b.eq(x, b.broadcast(at, axes=(0,), type=x.tensor))
    count = b.reduce(b.cast(same, type=tensor("i64", ROWS, 40000)), kind="sum", axes=(1,))
    total = b.reduce(b.cast(x, type=tensor("f32", ROWS, 40000)), kind="sum", axes=(1,))
    func = b.func("main", [x, at], [count, total])
    after = Pipeline("canonicalize,fuse,blocks,library").run(func).func
    values = [
        round_bf16(rng.integers(0, 4, s).astype(np.float32)) for s in ((ROWS, 40000), (ROWS,))
    ]
    got, sums = after.interpret(*values)
    np.testing.assert_array_equal(got, (values[0] == values[1][:, None]).sum(1))
    assert_near(np.asarray(sums), values[0].astype(np.float64).sum(1), "f32")
