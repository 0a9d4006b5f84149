"""Every hosted operator as JAX's: under jit, its derivatives, batching, and our compiler."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
from hosted_cases import CASES, SMALL, Case

jax = pytest.importorskip("jax")

import jax.numpy as jnp  # noqa: E402
from jax.test_util import check_grads  # noqa: E402

import stack  # noqa: E402
from stack.errors import RuleError  # noqa: E402
from stack.hosted import find  # noqa: E402
from stack.hosted.nodes import decomposed  # noqa: E402
from stack.ir.types import TensorType, dtype_of  # noqa: E402


def arrays(case: Case) -> list[Any]:
    return [jnp.asarray(a) for a in case.arrays("float32")]


def results(out: Any) -> tuple[Any, ...]:
    return out if isinstance(out, tuple) else (out,)


def close(found: Any, expected: Any) -> None:
    """A sum of large terms may be small: what it is off by is measured against the largest one."""
    for a, b in zip(results(found), results(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5 * np.max(np.abs(b), initial=1))


def call(case: Case) -> Any:
    return lambda *xs: case.op(*xs, **case.attributes)


@pytest.mark.every(11)
@pytest.mark.parametrize(("case", "is_jitted"), product(CASES, (True, False)), ids=str)
def test_values_inside_of_jit(case: Case, is_jitted: bool) -> None:
    expected = case.op(*case.arrays("float32"), **case.attributes)
    run = jax.jit(call(case)) if is_jitted else call(case)
    close(run(*arrays(case)), expected)


def traced(case: Case) -> stack.Func:
    """Its decomposition."""
    types = tuple(TensorType(dtype_of(a), a.shape) for a in case.arrays("float32"))
    return decomposed(case.op, types, tuple(sorted(case.op.read(case.attributes).items())))


def of_floats(case: Case) -> tuple[Any, list[Any]]:
    """The operator as a function of its floats, and these."""
    held = arrays(case)
    floats = [i for i, a in enumerate(held) if a.dtype == jnp.float32]

    def run(*given: Any) -> Any:
        full = list(held)
        for place, array in zip(floats, given, strict=True):
            full[place] = array
        return call(case)(*full)

    return run, [held[i] for i in floats]


@pytest.mark.every(4)
@pytest.mark.parametrize("case", SMALL)
def test_derivatives(case: Case) -> None:
    if not case.has_derivative:
        pytest.skip("its results are integers")
    run, floats = of_floats(case)
    # of long decompositions XLA compiles long derivatives: one order, as a whole
    is_short = len(traced(case).nodes) < 30
    order = case.order if case.op.gradient is None and is_short else 1
    modes = ["fwd", "rev"] if case.op.gradient is None else ["rev"]
    check_grads(run if is_short else jax.jit(run), floats, order, modes, atol=3e-2, rtol=3e-2)


@pytest.mark.every(8)
@pytest.mark.parametrize("case", SMALL)
def test_derivatives_inside_of_jit(case: Case) -> None:
    """XLA may compute one value twice there, rounded differently: no test may require equality."""
    if not case.has_derivative:
        pytest.skip("its results are integers")
    run, floats = of_floats(case)

    def derivatives(*given: Any) -> Any:
        out, pull = jax.vjp(run, *given)
        told = tuple(
            jnp.ones_like(o) if o.dtype == jnp.float32 else np.zeros(o.shape, jax.dtypes.float0)
            for o in results(out)
        )
        found = pull(told if isinstance(out, tuple) else told[0])
        if case.op.gradient is not None:
            return found
        moved = jax.jvp(run, given, tuple(map(jnp.ones_like, given)))[1]
        return *found, *(m for m in results(moved) if m.dtype == jnp.float32)

    close(jax.jit(derivatives)(*floats), derivatives(*floats))


@pytest.mark.every(3)
@pytest.mark.parametrize("case", SMALL)
def test_vmap(case: Case) -> None:
    held = arrays(case)
    others = [a[::-1] if a.ndim else a + 1 for a in held]
    axes = tuple(min(1, a.ndim) for a in held)
    stacked = [jnp.stack(pair, axis) for *pair, axis in zip(held, others, axes)]
    each = [results(call(case)(*held)), results(call(case)(*others))]
    close(
        jax.vmap(call(case), axes)(*stacked),
        tuple(np.stack(pair) for pair in zip(*each, strict=True)),
    )


def test_vmap_along_leading_axes_keeps_the_operator() -> None:
    op = find("norm.rms_norm")
    made = jax.make_jaxpr(jax.vmap(lambda x, w: op(x, w), (0, None)))(jnp.ones((3, 8)), jnp.ones(8))
    assert "stack_norm_rms_norm" in str(made)


@pytest.mark.parametrize("case", SMALL)
def test_our_compiler_takes_it_whole(case: Case) -> None:
    held = arrays(case)
    compiled = stack.compile(lambda *xs: call(case)(*xs), *held, strict=True)
    close(compiled(*held), call(case)(*held))
    assert compiled.run.coverage["hosted"] == 1


def test_sizes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(RuleError, match="'weight'"):
        jax.jit(find("norm.rms_norm"))(jnp.ones((4, 8)), jnp.ones(7))
