"""The peer OpenVINO: Intel's runtime for inference on CPUs, for our programs and torch's."""

from __future__ import annotations

from typing import Any

from stack.ir.func import Func
from stack.run.backend import Backend, Executable, Lowering, Peer

from .peer import is_from, need, refuse


def compile_openvino(func: Func, options: dict[str, Any]) -> Executable:
    """Converts a trace of the torch replay of a function; its CPU plugin fuses and picks kernels.

    Options:
        properties: properties of `openvino.compile_model`, by name, such as NUM_STREAMS. By
            default results are computed in f32 (INFERENCE_PRECISION_HINT).
    """
    from .peer_openvino import compile_replay

    return compile_replay(func, options)


def native_openvino(captured: Any, options: dict[str, Any]) -> Executable:
    """Converts the user's torch module or function. Options as for `compile`."""
    if not is_from("torch", captured):
        raise refuse("openvino", "torch")
    from .peer_openvino import compile_native

    return compile_native(captured, options)


BACKEND = Backend(
    name="openvino",
    compile=compile_openvino,
    missing=need("openvino", "openvino"),
    lowering=Lowering(artifacts=("openvino",)),
    options=("properties",),
    peer=Peer(native_openvino),
)
