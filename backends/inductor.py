"""The peer Inductor: torch's own compiler, for our programs and the user's."""

from __future__ import annotations

from typing import Any

from stack.ir.func import Func
from stack.run.backend import Backend, Executable, Lowering, Peer

from .peer import is_from, need, refuse


def compile_inductor(func: Func, options: dict[str, Any]) -> Executable:
    """Compile the replay of a function; Dynamo is not needed, as the graph already exists.

    Options:
        mode: "default", "max-autotune-no-cudagraphs" or another of torch.compile's.
        freezing: True to compile weights in as constants (`torch._inductor.config.freezing`); only
            for the user's own callable, because a replay takes its weights as arguments.
        inductor: more settings of `torch._inductor.config`, by name.
        fresh: compile in an empty cache directory (default: the one set by
            TORCHINDUCTOR_CACHE_DIR).
        device: "cpu" or "cuda".
    """
    from .peer_inductor import compile_replay

    return compile_replay(func, options)


def native_inductor(captured: Any, options: dict[str, Any]) -> Executable:
    """`torch.compile` of the user's callable, with its own weights. Options as for `compile`."""
    if not is_from("torch", captured):
        raise refuse("inductor", "torch")
    from .peer_inductor import compile_native

    return compile_native(captured, options)


BACKEND = Backend(
    name="inductor",
    compile=compile_inductor,
    missing=need("torch", "torch"),
    lowering=Lowering(artifacts=("inductor",)),
    options=("device", "freezing", "fresh", "inductor", "mode"),
    peer=Peer(native_inductor),
)
