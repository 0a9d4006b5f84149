"""Primitives of other packages: imported as what their implementation does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.extend.core import Primitive
from jax.interpreters import mlir

import stack

X = jnp.array(np.random.default_rng(5).normal(size=(3, 37)), jnp.float32)
CALLS: list[Any] = []


def own(name: str, impl: Callable[..., Any], several: bool = False) -> Primitive:
    """A primitive as packages declare one: JAX lowers its implementation."""
    primitive = Primitive(name)
    primitive.multiple_results = several
    primitive.def_impl(impl)
    primitive.def_abstract_eval(lambda x, **_: (x, x) if several else x)
    lowered = impl if name.startswith("traced") else jnp.tanh
    mlir.register_lowering(primitive, mlir.lower_fun(lowered, multiple_results=several))
    return primitive


SAME = own("traced_same", lambda x: x)
SCALED = own("traced_scaled", lambda x, *, by: jnp.tanh(x) * by)
BOTH = own("traced_both", lambda x, *, by: (x + by, lax.sort(x)), several=True)
NESTED = own("traced_nested", lambda x: SCALED.bind(SAME.bind(x), by=3.0) + 1)


def of_values(x: Any) -> Any:
    """An implementation by NumPy, which JAX cannot trace."""
    CALLS.append(x)
    return np.tanh(np.asarray(x))


BY_NUMPY = own("by_numpy", of_values)
BY_BIND = own("by_bind", lambda x: BY_BIND.bind(x))
WIDER = own("wider", lambda x: x[None])

PROGRAMS: dict[str, Callable[[Any], Any]] = {
    "identity": lambda x: SAME.bind(x * 2) - 1,
    "parameters": lambda x: SCALED.bind(x, by=0.5),
    "several": lambda x: BOTH.bind(x, by=2.0),
    "nested": NESTED.bind,
    "loop": lambda x: lax.fori_loop(0, 5, lambda i, c: SCALED.bind(SAME.bind(c), by=0.9) + i, x),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_implementation_is_imported(name: str) -> None:
    compiled = stack.compile(PROGRAMS[name], X)
    want = jax.jit(PROGRAMS[name])(X)
    for a, b in zip(jax.tree.leaves(compiled(X)), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-6, atol=1e-6)
    assert not compiled.run.coverage["fallback"]


@pytest.mark.parametrize("primitive", [BY_NUMPY, BY_BIND, WIDER], ids=str)
def test_what_cannot_be_traced_is_called(primitive: Primitive) -> None:
    """It needs values, binds itself, or gives a result of another shape."""
    compiled = stack.compile(lambda x: primitive.bind(x) + 1, X)
    np.testing.assert_allclose(compiled(X), jnp.tanh(X) + 1, rtol=2e-6)
    assert compiled.run.coverage["fallback_ops"] == {f"jax:{primitive.name}": 1}


def test_an_operation_of_xla_is_called() -> None:
    compiled = stack.compile(lambda x: jnp.linalg.qr(x)[1], X)
    assert compiled.run.coverage["fallback_ops"] == {"jax:qr": 1}
