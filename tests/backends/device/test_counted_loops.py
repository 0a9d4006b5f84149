"""Counted loops in custom calls of XLA: all iterations are in one call, with equal results."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from device_backend import with_stages

import stack
from stack import plugins
from stack.backends.calls import counted_loops

jax = pytest.importorskip("jax")
jnp, lax = jax.numpy, jax.lax
NAME = "device-loops"
STAGES = (
    ("canonical", "inline,canonicalize,fold,decompose,canonicalize,trip_counts"),
    ("fused", "fuse"),
    ("tiled", "blocks,library,memory{updated=[scatter]}"),
)


@pytest.fixture(scope="module", autouse=True)
def _backend() -> Iterator[None]:
    plugins.register("stack.backends", NAME, replace(with_stages(STAGES), name=NAME))
    yield
    plugins._ADDED["stack.backends"].pop(NAME)  # pyright: ignore[reportPrivateUsage]
    plugins.load.cache_clear()


def recurrence(x: Any, w: Any) -> Any:
    def step(h: Any, row: Any) -> Any:
        h = jnp.tanh(h @ w + row)
        return h, h * 2

    return lax.scan(step, x[0], x)


def carried_row(x: Any, w: Any) -> Any:
    """The row that is set is the value that is passed on."""

    def step(h: Any, row: Any) -> Any:
        h = jnp.tanh(h @ w + row)
        return h, h

    return lax.scan(step, x[0], x)


def one_row_twice(x: Any, w: Any) -> Any:
    def body(i: Any, state: Any) -> Any:
        h, table = state
        h = jnp.tanh(h @ w)
        return h, table.at[i // 2 + 4].set(h)  # the last row is out of range

    return lax.fori_loop(0, 6, body, (x[0], x * 0))


def read_before(x: Any, w: Any) -> Any:
    """A row is read that the iteration before has set, and an array that has other users."""

    def body(i: Any, t: Any) -> Any:
        return t.at[i].set(jnp.tanh(t[i - 1] @ w))

    return lax.fori_loop(1, 5, body, x), x + 1


def only_constants(x: Any, w: Any) -> Any:
    return lax.fori_loop(2, 9, lambda i, s: (s[0] * 2 + i, s[1] @ w + s[0]), (1, x))


def two_tables(x: Any, w: Any) -> Any:
    def step(h: Any, row: Any) -> Any:
        h = jnp.sin(h @ w) + row
        return h, (h, h.sum(-1), row)

    return lax.scan(step, x[0], x, reverse=True)


LISTED = [recurrence, carried_row, one_row_twice, read_before, only_constants, two_tables]


def swapped(x: Any, w: Any) -> Any:
    return lax.fori_loop(0, 5, lambda _, s: (s[1], jnp.tanh(s[0] @ w)), (x, x + 1))


def library_step(x: Any, w: Any) -> Any:
    return lax.fori_loop(0, 3, lambda _, x: jnp.sort(x @ w, 0), x)


def by_data(x: Any, w: Any) -> Any:
    """XLA would move a body that is one call with as many results as the loop out of it."""
    return lax.while_loop(lambda s: s[1].sum() > 1, lambda s: (s[0] + 1, s[1] * 0.5), (0, w * w))


def check(fn: Callable[..., Any], width: int = 4) -> str:
    rng = np.random.default_rng()
    x, w = (
        jnp.asarray(rng.standard_normal(s) / 2, jnp.float32)
        for s in ((6, 3, width), (width, width))
    )
    ours = stack.compile(fn, x, w, backend=NAME)
    for got, want in zip(jax.tree.leaves(ours(x, w)), jax.tree.leaves(fn(x, w)), strict=True):
        assert got.dtype == want.dtype
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
    return jax.jit(lambda *a: ours(*a)).lower(x, w).as_text()


@pytest.mark.parametrize("fn", LISTED, ids=lambda f: f.__name__)
def test_all_iterations_are_one_call(fn: Callable[..., Any]) -> None:
    text = check(fn, 64 if fn is carried_row else 4)  # rows of 64 are aligned
    assert "while" not in text
    assert text.count("custom_call @stack_cpu") == 1


@pytest.mark.parametrize("fn", [swapped, library_step, by_data], ids=lambda f: f.__name__)
def test_other_loops_are_run_by_xla(fn: Callable[..., Any]) -> None:
    assert "while" in check(fn)


def test_long_loops_are_run_by_xla(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counted_loops, "MOST", 8)
    assert "while" in check(recurrence)
