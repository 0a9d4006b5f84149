"""Tables that loops fill: scans and loops write into what they carry, and read it before."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import stack

SIZES = (64, 131)  # whole vectors and not
Step = Callable[[Any, tuple[Any, ...]], tuple[Any, ...]]


def recurrence(i: Any, t: Any) -> Any:
    return (t[0].at[i].set(t[0][i - 1] * 0.5 + 1), *t[1:])


def swap(i: Any, t: Any) -> Any:
    a, j = t[0], (i * 7) % len(t[0])
    return (a.at[i].set(a[j]).at[j].set(a[i]), *t[1:])


def swap_at_once(i: Any, t: Any) -> Any:
    a, pair = t[0], jnp.array([i, (i * 7 + 1) % len(t[0])])
    return (a.at[pair].set(a[pair[::-1]]), *t[1:])


def across(i: Any, t: Any) -> Any:
    a, b = t
    return a.at[i].set(b[i - 1] + 1), b.at[i].set(a[i - 1] * 0.5)


def traded(i: Any, t: Any) -> Any:
    a, b = t
    return b, a.at[i].add(b[i - 1])


def both_old(i: Any, t: Any) -> Any:
    a, b = t
    return a.at[i].set(a[i - 1] + 1), b + a


def sums(i: Any, t: Any) -> Any:
    return t[0].at[(i * 3) % 11].add(t[0][i]), t[1].at[i].max(t[0][i])


def sliced(i: Any, t: Any) -> Any:
    part = lax.dynamic_slice(t[0], (i - 1,), (3,))
    return lax.dynamic_update_slice(t[0], part * 0.5 + 1, (i,)), t[1]


def outside(i: Any, t: Any) -> Any:
    return t[0].at[i * 2].set(i), t[1].at[jnp.array([i, -1 - i, i + 9])].set(t[1][i])


def returned_twice(i: Any, t: Any) -> Any:
    a = t[0].at[i].set(t[0][i - 1] + 1)
    return a, a


STEPS: list[Step] = [recurrence, swap, swap_at_once, across, traded, both_old, sums, sliced]
STEPS += [outside, returned_twice]


@pytest.mark.every(3)
@pytest.mark.parametrize("step", STEPS, ids=lambda s: s.__name__)
@pytest.mark.parametrize("n", SIZES)
def test_loops_over_tables(step: Step, n: int, rng: np.random.Generator) -> None:
    def run(a: Any, b: Any) -> Any:
        return lax.fori_loop(1, n, step, (a, b))

    args = [jnp.asarray(rng.normal(size=n), jnp.float32) for _ in range(2)]
    before = [np.array(a) for a in args]
    compiled = stack.compile(run, *args)
    for _ in range(2):
        for want, got in zip(jax.jit(run)(*args), compiled(*args), strict=True):
            np.testing.assert_allclose(got, want, rtol=2e-6, atol=1e-6)
    for a, kept in zip(args, before, strict=True):
        np.testing.assert_array_equal(a, kept)
    if step in (recurrence, swap, across, sums, sliced, outside):
        text = compiled.run["loop"].text
        assert text.count("updates=") == text.count('"scatter"]'), text


@pytest.mark.each
@pytest.mark.parametrize("dtype", ["float32", "int32", "bool", "bfloat16"])
@pytest.mark.parametrize("n", [100, 128])
def test_scans_collect_scalars_in_place(dtype: str, n: int) -> None:
    def run(xs: Any) -> Any:
        def step(carry: Any, x: Any) -> Any:
            if dtype == "bool":
                return carry ^ x, (carry, carry & x)
            return carry + x, (carry, carry * x)

        return lax.scan(step, jnp.zeros((), dtype), xs)

    xs = (jnp.arange(n) % 3).astype(dtype)
    compiled = stack.compile(run, xs)
    for want, got in zip(jax.tree.leaves(jax.jit(run)(xs)), jax.tree.leaves(compiled(xs))):
        np.testing.assert_array_equal(got, want)
    assert compiled.run["loop"].text.count("updates=0") == 2


RULES = [
    lambda x, i, u: x.at[i].set(u),
    lambda x, i, u: x.at[:, i].set(u.T),
    lambda x, i, u: x.at[i, i[::-1]].set(u[:, 0]),
    lambda x, i, u: x.at[i[0]].set(u[0]),
    lambda x, i, u: x.at[i].add(u),
]


@pytest.mark.each
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("dtype", ["int32", "int8", "uint32"])
def test_updates_outside_are_dropped(rule: Any, dtype: str, rng: np.random.Generator) -> None:
    x = jnp.asarray(rng.normal(size=(7, 7)), jnp.float32)
    u = jnp.asarray(rng.normal(size=(5, 7)), jnp.float32)
    compiled = stack.compile(rule, x, jnp.zeros(5, dtype), u)
    for _ in range(8):
        # none meet: a negative index that is inside is another's place less 7
        moves = (0, 7) if dtype == "uint32" else (0, -7, -14, 7)
        i = jnp.asarray(rng.permutation(7)[:5] + rng.choice(moves, size=5), dtype)
        np.testing.assert_allclose(compiled(x, i, u), jax.jit(rule)(x, i, u), rtol=1e-6)
