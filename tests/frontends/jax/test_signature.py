"""Reasons for another capture: types that yield, settings, static arguments; what JAX runs."""

from __future__ import annotations

import functools
import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import stack

X = jnp.linspace(-1, 1, 5)
HALF = jnp.arange(3).astype(jnp.bfloat16)


def same(got: Any, want: Any) -> None:
    """Trees, types (weak ones too) and values of small programs without rounding of their own."""
    assert jax.tree.structure(got) == jax.tree.structure(want)
    for g, w in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert (g.dtype, g.shape) == (w.dtype, w.shape)
        assert getattr(g, "weak_type", False) == getattr(w, "weak_type", False)
        np.testing.assert_allclose(np.float64(g), np.float64(w), rtol=1e-6)


@pytest.mark.parametrize(
    ("first", "second"),
    [(3.0, jnp.float32(3)), (jnp.float32(3), 3.0), (3, np.int32(3)), (True, 1), (2.0, 3)],
    ids=str,
)
def test_a_type_that_yields_is_another_type(first: Any, second: Any) -> None:
    ours, theirs = stack.jit(lambda a, b: a * b), jax.jit(lambda a, b: a * b)
    for a in (first, second, first, second):
        same(ours(a, HALF), theirs(a, HALF))
    assert len(ours.graphs) == 2


def test_results_yield_as_those_of_jax() -> None:
    def program(a: Any) -> Any:
        return a * 2, 1.0, jnp.where(X > 0, 1.0, 0.0), jnp.float32(1), [1, True, 2j], X * a

    for a in (1.5, jnp.float32(1.5), 2):
        got, want = stack.jit(program)(a), jax.jit(program)(a)
        for g, w in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
            assert (g.dtype, g.weak_type) == (w.dtype, w.weak_type)
            assert (g * HALF[:1]).dtype == (w * HALF[:1]).dtype


def test_yielding_sizes_may_be_symbols() -> None:
    weak = jnp.broadcast_to(jnp.asarray(2.0), (4,))
    assert weak.weak_type
    ours = stack.jit(lambda a: a * HALF[:1], dynamic=True)
    for count in (4, 3):
        same(ours(weak[:count]), jax.jit(lambda a: a * HALF[:1])(weak[:count]))


SETTINGS = {
    "x64": (lambda: jax.enable_x64(True), lambda a: a + jnp.arange(3.0)),
    "random bits": (
        lambda: jax.threefry_partitionable(False),
        lambda a: a + jax.random.uniform(jax.random.key(0), (3,)),
    ),
}


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("is_first", [True, False])
def test_another_setting_is_another_capture(name: str, is_first: bool) -> None:
    context, program = SETTINGS[name]
    ours = stack.jit(program)
    for changed in (is_first, not is_first, is_first):
        with context() if changed else warnings.catch_warnings():
            same(ours(jnp.float32(1)), jax.jit(program)(jnp.float32(1)))
    assert len(ours.graphs) == 2


def test_what_jax_refuses_under_a_setting_is_refused() -> None:
    ours = stack.jit(lambda a, b: a + b)
    ours(X, HALF[:1])
    with jax.numpy_dtype_promotion("strict"), pytest.raises(Exception, match="strict"):
        ours(X, HALF[:1])


def head(x: Any, n: int, *, power: int = 2, scale: Any = 1.0) -> Any:
    return x[:n] ** power * scale


def test_static_arguments_by_place_and_by_name() -> None:
    ours = stack.jit(head, static_argnames=("n", "power"))
    theirs = jax.jit(head, static_argnames=("n", "power"))
    for _ in range(2):
        same(ours(X, 3), theirs(X, 3))
        same(ours(X, n=2), theirs(X, n=2))
        same(ours(X, 2, power=3, scale=X[:2]), theirs(X, 2, power=3, scale=X[:2]))
        same(ours(X, n=2, scale=2.0), theirs(X, n=2, scale=2.0))
    assert len(ours.graphs) == 4
    names = [[str(p.attrs["name"]) for p in graph.func.params] for graph in ours.graphs]
    assert names == [["x"], ["x"], ["x", "scale"], ["x", "scale"]]
    with pytest.raises(ValueError, match="hashable"):
        ours(X, [1])
    with pytest.raises(TypeError, match="unexpected keyword argument 'm'"):
        ours(X, 1, m=2)


def test_static_values_of_other_types_are_others() -> None:
    ours = stack.jit(lambda x, n: x * n, static_argnums=-1)
    for n in (1, True, 1.0):
        same(ours(jnp.int8([2]), n), jnp.int8([2]) * n)
    assert len(ours.graphs) == 3


def test_what_jax_jit_gave_keeps_its_static_arguments() -> None:
    jitted = jax.jit(head, static_argnames=("n", "power"), donate_argnums=0)
    assert [str(p.attrs["name"]) for p in stack.trace(jitted, X, 3).params] == ["x"]
    same(stack.jit(jitted)(X, 3, power=1), head(X, 3, power=1))
    same(stack.compile(jitted, X, 2)(X, 2), head(X, 2))


@pytest.mark.parametrize("options", [{"donate_argnums": 0}, {"donate_argnames": "x"}], ids=str)
def test_donated_memory_is_reused(options: dict[str, Any]) -> None:
    def double(x: Any, y: Any) -> Any:
        return x * 2 + y

    ours = stack.jit(double, **options)
    x, want = X + 1, double(X + 1, X)
    place = x.unsafe_buffer_pointer()
    got = ours(x, X)
    same(got, want)
    assert (x.is_deleted(), got.unsafe_buffer_pointer()) == (True, place)
    with pytest.raises((RuntimeError, ValueError), match="deleted or donated"):
        ours(x, X)


def test_options_of_neither_are_refused_by_name() -> None:
    with pytest.raises(stack.errors.UsageError, match="static_argnum'"):
        stack.jit(lambda x: x, static_argnum=1)(X)


def double(x: Any) -> Any:
    return (x * x).sum()


def test_part_of_another_program() -> None:
    inner = stack.jit(double)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        same(stack.jit(lambda x: inner(x) + 1)(X), double(X) + 1)
        same(stack.compile(jax.grad(inner), X)(X), 2 * X)
    assert not inner.graphs


def test_a_gradient_around_it_is_right_and_says_so() -> None:
    with pytest.warns(UserWarning, match=r"double: not compiled by stack.*stack\.jit\(jax\.grad"):
        got = jax.grad(stack.jit(double))(X)
    same(got, jax.grad(double)(X))


def test_it_steps_aside_where_nothing_is_to_be_compiled() -> None:
    ours = stack.jit(lambda x: x if x[0] > 0 else -x)
    with jax.disable_jit():
        same(ours(X), -X)
    with pytest.raises(Exception, match="Attempted boolean conversion"):
        ours(X)


class Scaled:
    by = 3

    @stack.jit
    def tripled(x: Any) -> Any:
        return x * 3

    @functools.partial(stack.jit, static_argnums=0)
    def scaled(self, x: Any) -> Any:
        return x * self.by


def test_a_method() -> None:
    same(Scaled().scaled(X), X * 3)
    same(Scaled.tripled(X), X * 3)


def test_gradients_of_integers_hold_nothing() -> None:
    def gradients(x: Any, i: Any) -> Any:
        return jax.grad(lambda x, i: (x * i).sum(), argnums=(0, 1), allow_int=True)(x, i)

    got, want = stack.jit(gradients)(X, jnp.arange(5)), gradients(X, jnp.arange(5))
    same(got[0], want[0])
    assert (got[1].dtype, got[1].shape) == (want[1].dtype, want[1].shape)


def test_without_arguments_the_first_call_captures() -> None:
    compiled = stack.compile(lambda x: x * 2)
    assert "not called yet" in repr(compiled)
    same(compiled(X), X * 2)
    same(stack.compile(lambda: jnp.ones(3) * 2)(), jnp.ones(3) * 2)


def test_a_program_that_jax_cannot_print() -> None:
    func = stack.compile(lambda x: jax.lax.mul_p.bind(x, x), X)
    same(func(X), X * X)
    assert "cannot print" in func.run["captured"].text or "mul" in func.run["captured"].text


@pytest.mark.parametrize("depth", [0, 1, 7, 300])
def test_products_of_booleans(depth: int) -> None:
    rng = np.random.default_rng()
    x, y = rng.random((3, depth)) > 0.9, rng.random((depth, 2)) > 0.9
    y[:, 1:] = x[:1].T
    for left, right in ((x, y), (np.ones_like(x), np.ones_like(y))):
        want = (left.astype(np.int64) @ right.astype(np.int64)) > 0
        got = stack.jit(jnp.matmul)(left, right)
        assert got.dtype == bool
        np.testing.assert_array_equal(got, want)
