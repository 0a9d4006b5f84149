"""The peer IREE: an MLIR compiler and runtime for StableHLO, for our programs and JAX's."""

from __future__ import annotations

import importlib.util
from typing import Any

from stack.ir.func import Func
from stack.releases import install_hint
from stack.run.backend import Backend, Executable, Lowering, Peer

from .peer import is_from, refuse


def compile_iree(func: Func, options: dict[str, Any]) -> Executable:
    """Compiles the StableHLO of the JAX replay of a function for this CPU; weights are arguments.

    Options:
        flags: more flags of `iree-compile`, such as "--iree-opt-level=O2".
    """
    from .peer_iree import compile_replay

    return compile_replay(func, options)


def native_iree(captured: Any, options: dict[str, Any]) -> Executable:
    """Compiles the StableHLO of the user's JAX callable. Options as for `compile`."""
    if not is_from("jax", captured):
        raise refuse("iree", "JAX")
    from .peer_iree import compile_native

    return compile_native(captured, options)


def _missing() -> str | None:
    """Returns what to install: IREE's compiler and runtime, and JAX, which writes its input."""
    for package in ("iree", "jax"):
        if importlib.util.find_spec(package) is None:
            return f"install the extra: {install_hint(package)}"
    return None


BACKEND = Backend(
    name="iree",
    compile=compile_iree,
    missing=_missing,
    lowering=Lowering(artifacts=("flow",)),
    options=("flags",),
    peer=Peer(native_iree),
)
