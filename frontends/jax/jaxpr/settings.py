"""JAX's settings that affect a trace: 64 bits, promotion, precision, random bits, meshes."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from jax._src import config


def settings() -> tuple[Hashable, ...]:
    """Returns their current values, as `jax.jit` stores them with each trace."""
    private: Any = config
    return private.trace_context()


def changed(before: tuple[Hashable, ...]) -> str:
    """Lists changed settings, as `jax_enable_x64=False, now True`."""
    private: Any = config
    rows = zip(private.trace_context_names(), before, settings(), strict=True)
    return "; ".join(f"{n}={was!r}, now {value!r}" for n, was, value in rows if was != value)
