"""Moving windows: which element a window selects, and gradients of pooling."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax_harness import check

NAN, INF = np.nan, np.inf
POOLS = {"max": (lax.max, -INF), "min": (lax.min, INF)}
ROWS = {
    "nan inside": [2.0, 5, NAN, 1, 7, 0, 3, 4],
    "nan last": [2.0, NAN, 5, NAN, 4, 4, NAN, 1],
    "nan only": [NAN] * 8,
    "infinities": [-INF, -INF, INF, INF, -INF, NAN, -INF, -INF],
    "nan before the least": [1.0, NAN, -INF, -INF, INF, NAN, INF, INF],
    "equal": [1.0, 1, 1, 2, 2, 2, 1, 1],
}
WINDOWS = [(3, 2, "VALID"), (4, 1, [(2, 1)])]


def pulled(kind: str, *window: Any) -> Callable[[Any], Any]:
    """The gradient of a pool, weighted by 1, 2, ..."""
    op, start = POOLS[kind]

    def fn(x: Any) -> Any:
        out, pull = jax.vjp(lambda x: lax.reduce_window(x, start, op, *window), x)
        return pull(jnp.arange(1.0, 1 + out.size).reshape(out.shape).astype(x.dtype))[0]

    return fn


@pytest.mark.every(5)
@pytest.mark.parametrize("kind", POOLS)
@pytest.mark.parametrize("name", ROWS)
def test_windows_with_nan_and_infinities(name: str, kind: str) -> None:
    for taps, stride, padding in WINDOWS:
        check(pulled(kind, (taps,), (stride,), padding), jnp.array(ROWS[name]))


@pytest.mark.every(5)
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("kind", POOLS)
def test_planes_with_nan(kind: str, dtype: str) -> None:
    x = jnp.arange(1.0, 17).reshape(4, 4).at[1, 2].set(NAN).astype(dtype)
    check(pulled(kind, (3, 3), (2, 2), "SAME"), x)
    check(pulled(kind, (1, 2), (1, 1), [(0, 0), (1, 1)]), x)


@pytest.mark.parametrize("kind", POOLS)
def test_forward_derivatives_with_nan(kind: str) -> None:
    op, start = POOLS[kind]

    def fn(x: Any, t: Any) -> Any:
        return jax.jvp(lambda x: lax.reduce_window(x, start, op, (3,), (1,), "VALID"), (x,), (t,))

    check(fn, jnp.array(ROWS["nan inside"]), jnp.arange(1.0, 9.0))


@pytest.mark.every(5)
@pytest.mark.parametrize("kind", POOLS)
@pytest.mark.parametrize("padding", [[(1, 0)], [(0, 1)], [(2, 3)]])
@pytest.mark.parametrize("stride", [1, 2])
def test_windows_of_one_element_with_padding(stride: int, padding: Any, kind: str) -> None:
    check(pulled(kind, (1,), (stride,), padding), jnp.arange(1.0, 9.0))


@pytest.mark.every(2)
@pytest.mark.parametrize("window", [((1, 1), (1, 1)), ((2, 1), (2, 1)), ((1, 1), (2, 2))])
def test_axes_without_a_window_with_padding(window: Any) -> None:
    x = jnp.arange(1.0, 17.0).reshape(4, 4)
    check(pulled("max", *window, [(1, 0), (0, 2)]), x)
    check(pulled("min", *window, [(0, 1), (0, 0)]), x)
