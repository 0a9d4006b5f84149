"""Ranges in JAX's profiler."""

from __future__ import annotations

from typing import Any

import jax

from stack.ranges import OpenRange


def jax_ranges() -> OpenRange | None:
    """Returns JAX's class of ranges; None while its profiler does not record."""
    found: Any = jax.profiler.TraceAnnotation
    return found if found.is_enabled() else None
