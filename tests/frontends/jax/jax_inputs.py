"""Inputs of small JAX programs, and the table that the programs are entered in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.extend
import jax.numpy as jnp
import numpy as np

Program = tuple[Callable[..., Any], tuple[Any, ...]]
PROGRAMS: dict[str, Program] = {}

_R = np.random.default_rng(0)
X = jnp.asarray(_R.uniform(0.2, 0.9, (4, 6)), jnp.float32)
S = jnp.asarray(_R.standard_normal((2, 4, 4)), jnp.float32)
P = S @ S.mT + 4 * jnp.eye(4)  # positive definite
V = jnp.asarray(_R.standard_normal(8), jnp.float32)
C = jnp.asarray(_R.standard_normal((3, 4)) + 1j * _R.standard_normal((3, 4)), jnp.complex64)
I = jnp.asarray(_R.integers(-9, 9, (4, 6)), jnp.int32)
U = jnp.asarray(_R.integers(0, 200, (4, 6)), jnp.uint8)
B = X > 0.5
H = X.astype(jnp.float16)
BF = X.astype(jnp.bfloat16)
KEY = jax.random.key(3)
OLD = jax.random.PRNGKey(3)
IMAGE = jnp.asarray(_R.standard_normal((2, 4, 9, 8)), jnp.float32)
KERNEL = jnp.asarray(_R.standard_normal((6, 4, 3, 2)), jnp.float32)


def enter(table: dict[str, Callable[..., Any]], *args: Any) -> None:
    for name, fn in table.items():
        assert name not in PROGRAMS, name
        PROGRAMS[name] = (fn, args)
