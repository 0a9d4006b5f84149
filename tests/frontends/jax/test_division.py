"""Division of integers: by zero, and of the least number by -1, as XLA has it."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import stack


@pytest.mark.each
@pytest.mark.parametrize(
    "fn", [lax.div, lax.rem, jnp.floor_divide, jnp.remainder], ids=lambda f: f.__name__
)
@pytest.mark.parametrize(
    "dtype", [np.int8, np.int32, np.uint8, np.uint32], ids=lambda d: d.__name__
)
def test_as_xla(fn: Callable[..., Any], dtype: type[np.integer[Any]]) -> None:
    limits = np.iinfo(dtype)
    numbers = np.array(
        [
            0,
            1,
            2,
            7,
            limits.max,
            limits.min,
            limits.min + 1,
            limits.max - 6,
            -1 if limits.min else 3,
        ]
    )
    x, y = np.array(list(itertools.product(numbers, numbers))).astype(dtype).T
    want = np.asarray(jax.jit(fn)(x, y))
    traced = stack.trace(fn, x, y, frontend="jax")
    np.testing.assert_array_equal(traced.interpret(x, y), want)
    np.testing.assert_array_equal(np.asarray(stack.jit(fn)(x, y)), want)
