"""The options of `jax.jit` that `stack.jit` takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax

JIT_OPTIONS = (
    *("static_argnums", "static_argnames", "donate_argnums", "donate_argnames"),
    *("keep_unused", "inline"),
)


def with_jit_options(
    fn: Callable[..., Any], options: Mapping[str, Any]
) -> tuple[Callable[..., Any], dict[str, Any]]:
    """Applies the options that `jax.jit` takes, and checks, to `fn`; returns the others too."""
    theirs = {k: v for k, v in options.items() if k in JIT_OPTIONS}
    rest = {k: v for k, v in options.items() if k not in JIT_OPTIONS}
    return (jax.jit(fn, **theirs) if theirs else fn), rest
