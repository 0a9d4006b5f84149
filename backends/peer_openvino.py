"""Drives OpenVINO on the CPU: a torch program is traced, converted and compiled by its plugin."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

import torch

from stack.errors import StackError
from stack.ir.func import Func
from stack.run.backend import Executable, Kernel

from .peer import Origins, quiet, zeros
from .peer_torch import (
    OriginSpace,
    Tensors,
    callable_of,
    examples,
    executable,
    given,
    prepare_for,
    user_call,
)

openvino: Any = import_module("openvino")  # not static: type checks run without it
NOT_RUN = ("Input", "Output", "Const")  # layers of the runtime model that compute nothing
LIBRARY = ("MatMul", "FullyConnected", "Convolution", "ScaledDotProductAttention")


class _Program(torch.nn.Module):
    """A function of tensors as a module, which is what OpenVINO traces."""

    def __init__(self, call: Callable[..., Tensors]) -> None:
        super().__init__()
        self.call = call

    def forward(self, *args: torch.Tensor) -> Any:
        found = self.call(*args)
        return found if len(found) != 1 else found[0]


def compile_replay(func: Func, options: dict[str, Any]) -> Executable:
    """See `openvino.compile_openvino`."""
    call = callable_of(func, OriginSpace(Origins(func), "cpu"))
    tensors = prepare_for([p.tensor for p in func.params])(zeros(func))
    run, fields = _compiled(call, tensors, options, "the IR's replay, weights are arguments")
    return executable(func, run, "cpu", zeros(func), **fields)


def compile_native(captured: Any, options: dict[str, Any]) -> Executable:
    """See `openvino.native_openvino`."""
    func, held = captured.func, given(captured)
    arrays = examples(captured)
    tensors = prepare_for([p.tensor for p in func.params], "cpu", held)(arrays)
    run, fields = _compiled(user_call(captured), tensors, options, "the original")
    return executable(func, run, "cpu", arrays, held, **fields)


def _compiled(
    call: Callable[..., Any], tensors: Tensors, options: dict[str, Any], what: str
) -> tuple[Callable[..., Tensors], dict[str, Any]]:
    properties = {"INFERENCE_PRECISION_HINT": "f32", **options.get("properties", {})}
    try:
        with quiet("openvino"), torch.no_grad():
            model = openvino.convert_model(_Program(call), example_input=tensors)
            compiled = openvino.Core().compile_model(model, "CPU", properties)
    except Exception as error:
        first = " ".join(str(error).split())[:300]
        raise StackError(f"openvino: {type(error).__name__}: {first}") from error
    request = compiled.create_infer_request()

    def run(*args: torch.Tensor) -> Tensors:
        # a trace drops arguments that the program does not use, and keeps the order of the others
        inputs = [a.detach().contiguous().numpy() for a in args]
        request.infer({i: inputs[n] for i, n in enumerate(_used(compiled, len(inputs)))}, True)
        count = len(compiled.outputs)
        return tuple(torch.from_numpy(request.get_output_tensor(i).data) for i in range(count))

    return run, {
        "find_peak": lambda: None,  # its memory is not torch's
        "find_kernels": lambda: _kernels(compiled),
        "counts_what": "layers of the compiled model that run: matmuls and convolutions (library)"
        " and others, each with what was fused into it (generated)",
        "artifacts": {"openvino": lambda: _text(compiled)},
        "note": f"OpenVINO {openvino.get_version()}, CPU plugin, {what}",
    }


def _used(compiled: Any, count: int) -> Sequence[int]:
    """Returns the number of the argument for each input of the model.

    Raises StackError if the trace dropped an argument, since inputs then have no known order.
    """
    if len(compiled.inputs) != count:
        raise StackError(
            f"openvino: {len(compiled.inputs)} of {count} arguments are left after conversion"
        )
    return range(count)


def _kernels(compiled: Any) -> list[Kernel]:
    """Returns the layers that run, in order, with the names of the ops that were fused."""
    found: list[Kernel] = []
    for layer in compiled.get_runtime_model().get_ordered_ops():
        info = layer.get_rt_info()
        kind = str(info["layerType"].astype(str)) if "layerType" in info else layer.get_type_name()
        if kind not in NOT_RUN:
            names = str(info["originalLayersNames"].astype(str)) if info else ""
            ops = tuple(dict.fromkeys(n.rpartition("/")[2].strip() for n in names.split(",")))
            place = "library" if kind in LIBRARY else "generated"
            found.append(Kernel(layer.get_friendly_name(), place, text=kind, ops=ops))
    return found


def _text(compiled: Any) -> str:
    """Returns a line for each layer that runs."""
    return "\n".join(f"{k.name}: {k.text} of {', '.join(k.ops)}" for k in _kernels(compiled))
