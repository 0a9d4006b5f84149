"""Captures one training step of a JAX program: its results and all gradients, as one program."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import jax
import jax.numpy as jnp

from stack.calls.compiled_callable import compile as compile_program
from stack.errors import UsageError
from stack.frontends.jax import FRONTEND
from stack.run.compile import check_native
from stack.run.frontend import RECORD
from stack.run.record import recorded


def train_runs(fn: Any, args: Sequence[Any], options: dict[str, Any]) -> list[Any]:
    """Returns the record of results and gradients together; see `Frontend.train_runs`."""
    leaves, tree = jax.tree.flatten(tuple(args))
    floats = [i for i, leaf in enumerate(leaves) if _is_float(leaf)]
    if not floats:
        raise UsageError("no argument is a float that could have a gradient")

    def total(chosen: list[Any], rest: list[Any]) -> tuple[Any, Any]:
        held = list(rest)
        for i, leaf in zip(floats, chosen, strict=True):
            held[i] = leaf
        results = fn(*jax.tree.unflatten(tree, held))
        return sum(jnp.sum(r) for r in jax.tree.leaves(results) if _is_float(r)), results

    def train_step(*values: Any) -> Any:
        held = jax.tree.leaves(values)
        chosen = [held[i] for i in floats]
        (_, results), gradients = jax.value_and_grad(total, has_aux=True)(chosen, held)
        return results, gradients

    with suppress(TypeError, ValueError):  # no signature
        train_step.__signature__ = inspect.signature(fn)  # for the names of parameters
    if options["backend"] == RECORD:
        captured = FRONTEND.capture(train_step, args)
        if options.get("strict"):
            check_native(captured.func)
        return [recorded(captured, "jax")]
    own = {k: v for k, v in options.items() if k != "cut_for"}  # a single graph is not partitioned
    return [compile_program(train_step, *args, frontend="jax", **own).run]


def _is_float(leaf: Any) -> bool:
    return jnp.issubdtype(jnp.result_type(leaf), jnp.floating)
