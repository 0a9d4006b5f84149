"""The settings of JAX that a trace goes by: 64 bits, promotion, precision, random bits, meshes."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from jax._src import config


def settings() -> tuple[Hashable, ...]:
    """All of them as they stand, as `jax.jit` keeps them with each trace."""
    private: Any = config
    return private.trace_context()


def changed(before: tuple[Hashable, ...]) -> str:
    """Those that are no longer as they were: `jax_enable_x64=False, now True`."""
    private: Any = config
    rows = zip(private.trace_context_names(), before, settings(), strict=True)
    return "; ".join(f"{n}={was!r}, now {value!r}" for n, was, value in rows if was != value)
