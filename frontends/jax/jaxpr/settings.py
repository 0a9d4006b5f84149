"""JAX's settings that affect a trace: 64 bits, promotion, precision, random bits, meshes."""

from __future__ import annotations

from collections.abc import Hashable

from stack.frameworks.jax_private import trace_setting_names, trace_settings


def settings() -> tuple[Hashable, ...]:
    """Returns the current values of JAX's settings that affect a trace."""
    return trace_settings()


def changed(before: tuple[Hashable, ...]) -> str:
    """Lists changed settings, as `jax_enable_x64=False, now True`."""
    rows = zip(trace_setting_names(), before, settings(), strict=True)
    return "; ".join(f"{n}={was!r}, now {value!r}" for n, was, value in rows if was != value)
