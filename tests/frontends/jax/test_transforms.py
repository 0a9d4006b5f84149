"""Control flow under vmap and grad, every element type, odd shapes: imported and native."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax_harness import TOLERANCE, check, compare, expected

import stack

X = jnp.linspace(-2, 2, 12, dtype=jnp.float32).reshape(3, 4)
N = jnp.array([0, 3, 1], jnp.int32)


def agree(fn: Callable[..., Any], *args: Any, tolerance: float | None = None) -> None:
    """Interpreter, replay and native code agree with JAX."""
    check(fn, *args, tolerance=tolerance)
    ours, want = stack.jit(fn, options={"cache": False})(*args), expected(fn, *args)
    assert jax.tree_util.tree_structure(ours) == jax.tree_util.tree_structure(want)
    for a, b in zip(jax.tree_util.tree_leaves(ours), jax.tree_util.tree_leaves(want), strict=True):
        compare(a, b, tolerance, "native")


# ---- control flow


def branch(x: Any, n: Any) -> Any:
    return lax.cond(n > 0, lambda y: jnp.sin(y), lambda y: y * 2, x)


def choice(x: Any, n: Any) -> Any:
    return lax.switch(n, [jnp.sin, jnp.cos, lambda y: y + 1], x)


def until(x: Any, n: Any) -> Any:
    return lax.while_loop(lambda c: c[0] < n, lambda c: (c[0] + 1, c[1] * 1.5 + c[0]), (0, x))


def times(x: Any, n: Any) -> Any:
    return lax.fori_loop(0, n, lambda i, y: y + i * jnp.cos(y), x)


def running(x: Any, n: Any) -> Any:
    return lax.scan(lambda c, r: (c + r * n, (c, jnp.tanh(r))), jnp.float32(1), x)


def backward(x: Any, n: Any) -> Any:
    return lax.scan(lambda c, r: (c * 0.5 + r, c * n), jnp.float32(1), x, reverse=True)


def nested(x: Any, n: Any) -> Any:
    def step(carry: Any, row: Any) -> Any:
        more = lax.while_loop(lambda c: c < n, lambda c: c + 1, 0)
        return lax.cond(row > 0, lambda c: c + more, lambda c: c - row, carry), carry

    return lax.scan(step, jnp.float32(0), x)


FLOWS = [branch, choice, until, times, running, backward, nested]


@pytest.mark.every(7)
@pytest.mark.parametrize("flow", FLOWS)
def test_vmap_of_both(flow: Any) -> None:
    agree(jax.vmap(flow), X, N)


@pytest.mark.every(7)
@pytest.mark.parametrize("flow", FLOWS)
def test_vmap_of_the_data_alone(flow: Any) -> None:
    agree(jax.vmap(flow, in_axes=(1, None), out_axes=-1), X.T, jnp.int32(2))


@pytest.mark.slow
@pytest.mark.parametrize("flow", FLOWS)
def test_vmap_of_the_count_alone(flow: Any) -> None:
    agree(jax.vmap(flow, in_axes=(None, 0)), X[0], N)


@pytest.mark.every(7)
@pytest.mark.parametrize("flow", FLOWS)
def test_vmap_of_vmap(flow: Any) -> None:
    inner = jax.vmap(flow, in_axes=(None, 0))
    agree(jax.vmap(inner, in_axes=(0, None)), X, N)


@pytest.mark.every(2)
@pytest.mark.parametrize("flow", FLOWS)
def test_no_lanes(flow: Any) -> None:
    agree(jax.vmap(flow), X[:0], N[:0])


def summed(flow: Any) -> Any:
    return lambda x, n: sum(jnp.sum(leaf) for leaf in jax.tree_util.tree_leaves(flow(x, n)))


@pytest.mark.parametrize("flow", [branch, choice, running, backward])
def test_gradients_under_vmap(flow: Any) -> None:
    agree(jax.vmap(jax.grad(summed(flow))), X, N)


@pytest.mark.parametrize("flow", [branch, running])
def test_forward_derivatives(flow: Any) -> None:
    agree(jax.vmap(jax.jacfwd(lambda x, n: flow(x, n)), in_axes=(0, 0)), X, N)


@pytest.mark.filterwarnings("ignore:.*not compiled by stack where jax.grad:UserWarning")
@pytest.mark.parametrize("number", [3.0, 2, True])
def test_a_result_that_is_a_number_of_python(number: Any) -> None:
    def fn(x: Any) -> Any:
        return jnp.sin(x).sum(), number

    got = jax.value_and_grad(stack.jit(fn), has_aux=True)(X)
    want = jax.value_and_grad(jax.jit(fn), has_aux=True)(X)
    for a, b in zip(jax.tree_util.tree_leaves(got), jax.tree_util.tree_leaves(want), strict=True):
        compare(a, b, None, "gradient")
        assert jax.typeof(a) == jax.typeof(b)  # its weak type too


def test_a_carry_of_several_types() -> None:
    def step(carry: Any, row: Any) -> Any:
        count, flag, total = carry
        return (count + 1, flag ^ (row > 0), total + row.astype(jnp.bfloat16)), flag

    start = (jnp.int8(0), jnp.array(True), jnp.bfloat16(0))
    agree(jax.vmap(lambda x: lax.scan(step, start, x)), X)


def centred(x: Any) -> Any:
    return x - lax.pmean(x, "i"), lax.pmax(x, "i") - lax.pmin(x, "i")


def of_types(x: Any) -> Any:
    return lax.psum({"n": (x * 9).astype(jnp.int32), "b": x > 0, "z": x * 1j}, "i")


def over_both(x: Any) -> Any:
    return jax.vmap(lambda v: v / (1 + lax.psum(v * v, ("j", "i"))), axis_name="j")(x)


@pytest.mark.parametrize("lanes", [centred, of_types, over_both])
def test_reductions_over_lanes(lanes: Any) -> None:
    fn = jax.vmap(lanes, axis_name="i")
    compiled, want = stack.compile(fn, X), jax.jit(fn)(X)
    for a, b in zip(jax.tree.leaves(compiled(X)), jax.tree.leaves(want), strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-6)
    assert not compiled.run.coverage["fallback"]


def test_a_reduction_between_devices_is_none_over_lanes() -> None:
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]), ("i",))
    spec = jax.sharding.PartitionSpec("i")
    fn = jax.shard_map(lambda x: x - lax.pmean(x, "i"), mesh=mesh, in_specs=spec, out_specs=spec)
    np.testing.assert_array_equal(stack.jit(fn)(X), jax.jit(fn)(X))
    assert stack.compile(fn, X).run.coverage["fallback"]


# ---- element types


@pytest.fixture
def wide() -> Iterator[None]:
    with jax.enable_x64(True):
        yield


QUICK = ("bool", "int8", "int64", "bfloat16", "float64")


def types(*names: str) -> list[Any]:
    """Some types in every run, the others in the sweep."""
    return [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in names]


INTS = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]
FLOATS = ["float16", "bfloat16", "float32", "float64"]
ANY: dict[str, Callable[..., Any]] = {
    "compare": lambda x: (x == x[::-1], x < x[::-1], x != 0),
    "move": lambda x: (x.T, x[1:, ::2], jnp.pad(x, 1), jnp.concatenate([x, x], 1), x.reshape(-1)),
    "select": lambda x: jnp.where(x > 0, x, x[::-1]),
    "largest": lambda x: (x.max(1), x.min(), x.argmax(0), x.argmin(1)),
    "sort": lambda x: (jnp.sort(x, axis=1), jnp.argsort(x, axis=0)),
    "index": lambda x: (x[jnp.array([2, 0])], x.at[1].set(x[0]), jnp.take(x, 1, axis=1)),
    "convert": lambda x: [x.astype(t) for t in ("bool", "int32", "float32", "bfloat16", "int64")],
}
NUMBERS: dict[str, Callable[..., Any]] = {
    "arithmetic": lambda x: (x + x, x - x[::-1], x * x, jnp.sign(x), jnp.clip(x, 1, 2)),
    "divide": lambda x: (x // 3, x % 3, jnp.where(x == 0, 1, x) / 2),
    "sums": lambda x: (x.sum(1), x.prod(0), jnp.cumsum(x, 1)),
    "add at": lambda x: x.at[jnp.array([0, 2])].add(x[:2]),
    "product": lambda x: x @ x.T,
}
BITS: dict[str, Callable[..., Any]] = {
    "bits": lambda x: (x & 5, x | x[::-1], x ^ 3, ~x),
    "shifts": lambda x: (x << 1, x >> 1, lax.shift_right_logical(x, jnp.ones_like(x))),
    "power": lambda x: x**3,
}


def filled(dtype: str, shape: tuple[int, ...] = (3, 4)) -> Any:
    rng = np.random.default_rng(0)
    if dtype == "bool":
        return jnp.asarray(rng.integers(0, 2, shape) == 1)
    low = 0 if dtype.startswith("u") else -9
    values = rng.integers(low, 9, shape)
    return jnp.asarray(values if "int" in dtype else values / 4, dtype)


def loose(dtype: str) -> float | None:
    """Results may be of other types than the argument."""
    return 3 * TOLERANCE[dtype] if dtype in ("float16", "bfloat16") else None


@pytest.mark.every(3)
@pytest.mark.parametrize("program", ANY)
@pytest.mark.parametrize("dtype", types("bool", *INTS, *FLOATS))
def test_any_type(wide: None, dtype: str, program: str) -> None:
    agree(ANY[program], filled(dtype), tolerance=loose(dtype))


@pytest.mark.every(3)
@pytest.mark.parametrize("program", NUMBERS)
@pytest.mark.parametrize("dtype", types(*INTS, *FLOATS))
def test_numbers(wide: None, dtype: str, program: str) -> None:
    agree(NUMBERS[program], filled(dtype), tolerance=loose(dtype))


@pytest.mark.every(3)
@pytest.mark.parametrize("program", BITS)
@pytest.mark.parametrize("dtype", types(*INTS))
def test_bits(wide: None, dtype: str, program: str) -> None:
    agree(BITS[program], filled(dtype))


@pytest.mark.every(7)
@pytest.mark.parametrize("dtype", ["bool", "int8", "int64", "uint64", "bfloat16", "float64"])
@pytest.mark.parametrize("shape", [(), (1,), (0,), (0, 4), (3, 0)])
def test_odd_shapes(wide: None, dtype: str, shape: tuple[int, ...]) -> None:
    def fn(x: Any) -> Any:
        return x == x, jnp.where(x > 0, x, x), x.astype("float32") * 2, x.reshape(-1), x.sum()

    agree(fn, filled(dtype, shape), tolerance=loose(dtype))


@pytest.mark.every(2)
@pytest.mark.parametrize("dtype", ["int8", "int64", "uint64"])
def test_limits_of_integers(wide: None, dtype: str) -> None:
    info = jnp.iinfo(dtype)
    x = jnp.array([info.min, info.max, 0, 1, info.max - 1], dtype)
    agree(lambda x: (x + 1, x - 1, x * x, -x, abs(x), x.sum(), x.max(), x.astype("float64")), x)


@pytest.mark.every(2)
@pytest.mark.parametrize("dtype", FLOATS)
def test_numbers_that_are_not_finite(wide: None, dtype: str) -> None:
    x = jnp.array([jnp.nan, jnp.inf, -jnp.inf, -0.0, 1.0], dtype)

    def fn(x: Any) -> Any:
        return x + 1, x * 0, x == x, jnp.maximum(x, 0), jnp.isnan(x), x.max(), jnp.exp(x), 1 / x

    agree(fn, x, tolerance=loose(dtype))
