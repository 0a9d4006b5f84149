"""The peer XLA: `jax.jit`, for our programs and the user's."""

from __future__ import annotations

from typing import Any

from stack.ir.func import Func
from stack.run.backend import Backend, Executable, Lowering, Peer

from .peer import is_from, need, refuse


def compile_xla(func: Func, options: dict[str, Any]) -> Executable:
    """`jax.jit` of the replay of a function; weights are arguments.

    Options:
        xla: compiler options for XLA, by name (`jax.stages.Lowered.compile`).
        device: the device of the arrays: "cpu" (default) or "cuda".
    """
    from .peer_jax import compile_replay

    return compile_replay(func, options)


def native_xla(captured: Any, options: dict[str, Any]) -> Executable:
    """`jax.jit` of the user's callable, which uses the arrays that it closes over."""
    if not is_from("jax", captured):
        raise refuse("xla", "JAX")
    from .peer_jax import compile_native

    return compile_native(captured, options)


BACKEND = Backend(
    name="xla",
    compile=compile_xla,
    missing=need("jax", "jax"),
    lowering=Lowering(artifacts=("hlo",)),
    options=("device", "xla"),
    peer=Peer(native_xla),
)
