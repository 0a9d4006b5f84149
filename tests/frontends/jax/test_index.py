"""Gather, scatter and dynamic slices: grids over dimension numbers and modes."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax_harness import all_nodes, check

import stack
from stack.frontends.jax import FRONTEND

RNG = np.random.default_rng(2)
MODES = ["clip", "fill", "promise_in_bounds"]


BEYOND = jnp.array([-7, 0, 4, 5, 99, -5, -1])


def _slow(value: str) -> Any:
    return pytest.param(value, marks=pytest.mark.slow)


def draw(*shape: int, dtype: str = "float32") -> Any:
    if "int" in dtype:
        return jnp.asarray(RNG.integers(-9, 9, shape), dtype)
    return jnp.asarray(RNG.standard_normal(shape), dtype)


def indices(shape: Any, low: int, high: int, dtype: str = "int32") -> Any:
    return jnp.asarray(RNG.integers(low, high, shape), dtype)


# operand, indices, (offset, collapsed, map, operand batch, indices batch), window
GATHERS = {
    "rows": ((6, 4), (3, 1), ((1,), (0,), (0,), (), ()), (1, 4)),
    "columns": ((6, 4), (3, 1), ((0,), (1,), (1,), (), ()), (6, 1)),
    "points": ((6, 4), (5, 2), ((), (0, 1), (0, 1), (), ()), (1, 1)),
    "points_swapped": ((6, 6), (5, 2), ((), (0, 1), (1, 0), (), ()), (1, 1)),
    "windows": ((6, 7), (5, 2), ((1, 2), (), (0, 1), (), ()), (2, 3)),
    "windows_first": ((6, 7), (2, 3, 2), ((0, 2), (), (0, 1), (), ()), (2, 3)),
    "part_of_an_unindexed_axis": ((6, 7), (5, 1), ((1,), (0,), (0,), (), ()), (1, 3)),
    "dropped_unindexed_axis": ((6, 7), (5, 1), ((1,), (1,), (0,), (), ()), (2, 1)),
    "whole_axis_indexed": ((6, 7), (5, 2), ((1,), (0,), (0, 1), (), ()), (1, 7)),
    "batched": ((3, 6, 4), (3, 5, 1), ((2,), (1,), (1,), (0,), (0,)), (1, 1, 4)),
    "batched_inside": ((6, 3, 4), (5, 3, 1), ((0,), (0,), (0,), (1,), (1,)), (1, 1, 4)),
    "batched_windows": ((3, 6, 4), (3, 5, 2), ((2, 3), (), (1, 2), (0,), (0,)), (1, 2, 2)),
    "scalar_index": ((6, 4), (1,), ((0,), (0,), (0,), (), ()), (1, 4)),
    "no_index": ((6, 4), (3, 0), ((1, 2), (), (), (), ()), (6, 4)),
    "nothing": ((6, 4), (0, 1), ((1,), (0,), (0,), (), ()), (1, 4)),
}


@pytest.mark.each
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", GATHERS)
def test_gather(name: str, mode: str) -> None:
    shape, index_shape, numbers, sizes = GATHERS[name]
    dn = lax.GatherDimensionNumbers(*numbers)

    def fn(x: Any, i: Any) -> Any:
        return lax.gather(x, i, dn, sizes, mode=mode)

    check(fn, draw(*shape), indices(index_shape, -3, 9))


@pytest.mark.every(2)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int32", "uint8", "bool"])
def test_gather_fill_values(dtype: str) -> None:
    x = draw(5).astype(dtype)
    check(lambda x, i: x.at[i].get(mode="fill"), x, jnp.array([0, 7, -2, -9, 4]))
    check(lambda x, i: x.at[i].get(mode="fill", fill_value=1), x, jnp.array([0, 7, -2]))


@pytest.mark.every(2)
@pytest.mark.parametrize("dtype", ["int8", "int32", "uint8", "uint32"])
def test_index_types(dtype: str) -> None:
    i = jnp.asarray([0, 3, 100, 2], dtype)
    check(lambda x, i: x.at[i].get(mode="clip"), draw(5, 3), i)
    check(lambda x, i: x.at[i].add(1.0), draw(5, 3), i)


def test_take_and_friends() -> None:
    x = draw(5, 6)
    i = jnp.array([[0, -1, 3], [2, 7, -8]])
    check(lambda x, i: jnp.take(x, i, axis=0), x, i)
    check(lambda x, i: jnp.take(x, i, axis=1, mode="wrap"), x, i)
    check(lambda x, i: jnp.take_along_axis(x, i, axis=1), x[:2], i)
    check(lambda x, i: x[i, 1], x, i)
    check(lambda x: jnp.where(x > 0, x, 0)[1:, jnp.arange(3)], x)
    check(lambda x: jax.nn.one_hot(jnp.argmax(x, 1), 6), x)


# operand, indices, updates, (window, inserted, map, operand batch, indices batch)
SCATTERS = {
    "rows": ((6, 4), (3, 1), (3, 4), ((1,), (0,), (0,), (), ())),
    "columns": ((6, 4), (3, 1), (6, 3), ((0,), (1,), (1,), (), ())),
    "points": ((6, 4), (5, 2), (5,), ((), (0, 1), (0, 1), (), ())),
    "windows": ((6, 7), (5, 2), (5, 2, 3), ((1, 2), (), (0, 1), (), ())),
    "windows_first": ((6, 7), (2, 3, 2), (2, 2, 3, 3), ((0, 2), (), (0, 1), (), ())),
    "part_of_an_unindexed_axis": ((6, 7), (5, 1), (5, 3), ((1,), (0,), (0,), (), ())),
    "inserted_unindexed_axis": ((6, 7), (5, 1), (5, 2), ((1,), (1,), (0,), (), ())),
    "whole_axis_indexed": ((6, 7), (5, 2), (5, 7), ((1,), (0,), (0, 1), (), ())),
    "whole_array": ((6, 7), (2,), (6, 7), ((0, 1), (), (0, 1), (), ())),
    "batched": ((3, 6, 4), (3, 5, 1), (3, 5, 4), ((2,), (1,), (1,), (0,), (0,))),
    "batched_windows": ((3, 6, 4), (3, 5, 2), (3, 5, 2, 2), ((2, 3), (), (1, 2), (0,), (0,))),
    "scalar_index": ((6, 4), (1,), (4,), ((0,), (0,), (0,), (), ())),
    "nothing": ((6, 4), (0, 1), (0, 4), ((1,), (0,), (0,), (), ())),
}
KINDS = ["scatter", "scatter_add", "scatter_mul", "scatter_min", "scatter_max", "scatter_sub"]


@pytest.mark.each
@pytest.mark.parametrize("mode", ["clip", "fill", _slow("promise_in_bounds")])
@pytest.mark.parametrize("kind", [*KINDS[:2], *map(_slow, KINDS[2:])])
@pytest.mark.parametrize("name", SCATTERS)
def test_scatter(name: str, kind: str, mode: str) -> None:
    shape, index_shape, update_shape, numbers = SCATTERS[name]
    if kind == "scatter" and "windows" in name:
        pytest.skip("which of two overlapping windows is written last is not defined")
    dn = lax.ScatterDimensionNumbers(*numbers)

    def fn(x: Any, i: Any, u: Any) -> Any:
        return getattr(lax, kind)(x, i, u, dn, mode=mode)

    check(fn, draw(*shape), indices(index_shape, -3, 9), draw(*update_shape))


@pytest.mark.parametrize("mode", ["drop", "clip"])
def test_into_nothing(mode: str) -> None:
    i = jnp.array([0, -1], jnp.int32)
    check(lambda x, i: x.at[i].multiply(2, mode=mode), draw(0), i)
    check(lambda x, i: x.at[:, i].set(1, mode=mode), draw(3, 0), i)


@pytest.mark.every(2)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int32", "uint8"])
def test_at(dtype: str) -> None:
    x = draw(5, 6).astype(dtype)
    i = jnp.array([0, -1, 9])
    one = jnp.ones((), dtype)
    check(lambda x, i: x.at[i].set(one), x, i)
    check(lambda x, i: x.at[:, i].add(one), x, i)
    check(lambda x, i: x.at[i, 1:3].max(one), x, i)
    check(lambda x: x.at[1:3, ::2].set(0), x)
    check(lambda x: x.at[2].multiply(2), x)
    check(lambda x: x.at[1, 1].apply(jnp.abs), x, opaque=["jax:scatter"], replay_too=False)


@pytest.mark.each
@pytest.mark.parametrize("starts", [(0, 0), (2, 3), (-4, 90), (3, 0)])
@pytest.mark.parametrize("sizes", [(1, 1), (2, 3), (5, 2), (5, 6), (1, 6), (0, 2)])
def test_dynamic_slice(starts: Any, sizes: Any) -> None:
    x = draw(5, 6)
    check(lambda x, i, j: lax.dynamic_slice(x, (i, j), sizes), x, *starts)
    check(lambda x: lax.dynamic_slice(x, starts, sizes), x)


@pytest.mark.each
@pytest.mark.parametrize("starts", [(0, 0), (2, 3), (-4, 90), (3, 0)])
@pytest.mark.parametrize("sizes", [(1, 1), (2, 3), (5, 2), (5, 6), (1, 6), (0, 2)])
def test_dynamic_update_slice(starts: Any, sizes: Any) -> None:
    x, update = draw(5, 6), draw(*sizes)
    check(lambda x, u, i, j: lax.dynamic_update_slice(x, u, (i, j)), x, update, *starts)
    check(lambda x, u: lax.dynamic_update_slice(x, u, starts), x, update)


def test_vmapped_dynamic_slices() -> None:
    x, i = draw(4, 9, 3), jnp.array([0, 3, 8, -1])
    check(jax.vmap(lambda x, i: lax.dynamic_slice(x, (i, 0), (2, 3))), x, i)
    check(jax.vmap(lambda x, i: lax.dynamic_index_in_dim(x, i, keepdims=False)), x, i)
    update = draw(4, 2, 3)
    check(jax.vmap(lambda x, u, i: lax.dynamic_update_slice(x, u, (i, 0))), x, update, i)
    check(jax.vmap(lambda x, i: lax.dynamic_slice(x, (i, 0), (2, 3)), (None, 0)), x[0], i)


def test_indices_known_to_be_in_range_need_no_clamp() -> None:
    def fn(table: Any, x: Any) -> Any:
        return jnp.take_along_axis(table, jnp.argmax(x, 1)[:, None] % 4, axis=1)

    captured = check(fn, draw(3, 4), draw(3, 7))
    ops = [n.op for n in all_nodes(captured.func)]
    assert ops.count("gather") == 1
    assert "le" not in ops
    assert "min" not in ops


def test_gradients() -> None:
    x, i = draw(5, 6), jnp.array([0, -1, 9, 0])
    check(jax.grad(lambda x, i: (jnp.take(x, i, axis=0, mode="clip") ** 2).sum()), x, i)
    check(jax.grad(lambda x, i: (x[i, 1] ** 2).sum()), x, i)
    check(jax.grad(lambda x: (lax.dynamic_slice(x, (1, 2), (3, 3)) ** 3).sum()), x)
    check(jax.grad(lambda x: (x.at[i].set(1.0) ** 2).sum()), x)
    check(jax.grad(lambda x: (jnp.take_along_axis(x, jnp.array([[1], [0]]), 1) ** 2).sum()), x[:2])


@pytest.mark.every(5)
@pytest.mark.parametrize("mode", ["clip", "promise_in_bounds", _slow("drop")])
@pytest.mark.parametrize("op", ["add", "max", "set", *map(_slow, ("multiply", "min", "divide"))])
def test_updates_out_of_range(op: str, mode: str) -> None:
    def fn(x: Any, u: Any, i: Any) -> Any:
        return getattr(x.at[i], op)(u, mode=mode)

    x, u = jnp.arange(1.0, 6.0), 3 * jnp.arange(7.0) - 4.5
    check(fn, x, u, BEYOND)
    if op in ("add", "min", "max"):
        check(fn, x.astype("int32"), u.astype("int32"), BEYOND)
        check(jax.grad(lambda *a: (fn(*a) ** 2).sum(), (0, 1)), x, u, BEYOND)
    if op in ("add", "max", "set"):
        batch = draw(3, 5), draw(3, 3), jnp.array([[-7, 0, 5], [4, 9, 1], [2, -1, -5]])
        check(jax.vmap(fn), *batch)
        check(jax.grad(lambda *a: (jax.vmap(fn)(*a) ** 2).sum()), *batch)


@pytest.mark.parametrize("mode", ["promise_in_bounds", *map(_slow, ("clip", "drop"))])
@pytest.mark.parametrize("kind", ["scatter_add", "scatter_max", *map(_slow, KINDS[2:4])])
def test_windows_partly_out_of_range(kind: str, mode: str) -> None:
    """XLA moves or drops a window as a whole."""
    dn = lax.ScatterDimensionNumbers((1, 2), (), (0, 1))
    starts = jnp.array([[-1, 0], [3, 1], [2, 3], [0, 4], [1, 1]])

    def fn(x: Any, u: Any) -> Any:
        return getattr(lax, kind)(x, starts, u, dn, mode=mode)

    x, u = draw(4, 5), draw(5, 2, 2)
    check(fn, x, u)
    if kind != "scatter_mul":
        check(jax.grad(lambda *a: (fn(*a) * jnp.cos(a[0])).sum(), (0, 1)), x, u)


@pytest.mark.parametrize("mode", ["promise_in_bounds", *map(_slow, ("clip", "fill"))])
def test_gradients_of_reads_out_of_range(mode: str) -> None:
    x = jnp.arange(5.0) + 1
    check(jax.grad(lambda x: (x.at[BEYOND].get(mode=mode, fill_value=0) ** 3).sum()), x)
    check(lambda x: x.at[BEYOND].add(2 - 1j, mode=mode), x + 2j)


@pytest.mark.each
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("k", [3, 5, 10])
def test_top_k_is_in_total_order(dtype: str, k: int) -> None:
    """0 comes before -0, and a nan with its sign bit set comes last, as in XLA."""
    odd = [-0.0, 0.0, -0.0, 1.0, 0.0, -1.0, np.nan, -np.nan, np.inf, -np.inf]
    x = jnp.asarray(np.array(odd, np.float32)).astype(dtype)
    want = lax.top_k(x, k)
    for fn in (stack.compile(lambda v: lax.top_k(v, k), x), jax.jit(lambda v: lax.top_k(v, k))):
        values, places = fn(x)
        np.testing.assert_array_equal(np.asarray(places), np.asarray(want[1]))
        np.testing.assert_array_equal(np.signbit(values), np.signbit(want[0]))
    check(lambda v: lax.top_k(v, k), x)


def test_top_k_of_integers() -> None:
    x = jnp.array([[3, -7, 3, 2**31 - 1, -(2**31)]], jnp.int32)
    check(lambda v: lax.top_k(v, 4), x)
    check(lambda v: lax.top_k(v, 4), x.astype(jnp.uint32))


@pytest.mark.parametrize(("size", "drops"), [(40, True), (8, False)])
def test_a_gpu_drops_updates_that_outnumber_the_sums(size: int, drops: bool) -> None:
    rng = np.random.default_rng()
    x = jnp.asarray(rng.standard_normal((size, 3)), jnp.float32)
    places = jnp.asarray(rng.integers(-4, 14, size), jnp.int32)

    def sums(x, places):  # type: ignore[no-untyped-def]
        return jax.ops.segment_sum(x, places, num_segments=10)

    func = FRONTEND.capture(sums, (x, places), device="cuda:0").func
    (scatter,) = (n for n in func.nodes if n.op == "scatter")
    assert scatter.attrs.get("drop", False) == drops
    got = func.interpret(np.asarray(x), np.asarray(places))
    np.testing.assert_allclose(got, sums(x, places), rtol=1e-5, atol=1e-6)
