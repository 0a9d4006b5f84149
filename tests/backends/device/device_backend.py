"""A backend on the runtime of the GPU backends whose kernels run in the interpreter."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from stack.backends.device.executable import executable
from stack.backends.device.tensors import upload
from stack.backends.device.torch_device import TorchDevice
from stack.backends.runtime.plan import OnArrays
from stack.backends.runtime.program import BlockProgram
from stack.backends.runtime.records import describe
from stack.frontends.torch.tensors.arrays import to_numpy
from stack.ir.data import decode, encode
from stack.ir.func import Func
from stack.ir.interpreter import evaluate
from stack.ir.node import Block, Node
from stack.ir.space import NumpySpace
from stack.ir.types import TupleType
from stack.run.backend import Backend, Executable, Lowering

STAGES = (
    ("canonical", "inline,canonicalize,fold,decompose,canonicalize"),
    ("laid-out", "layout,canonicalize"),
    ("fused", "fuse"),
    ("tiled", "tile,library,memory"),
)


def load(node: Node) -> OnArrays:
    """A kernel in the interpreter, writing where a kernel would."""
    params = [Node("param", (), {"name": f"p{i}"}, a.type) for i, a in enumerate(node.args)]
    kernel = Node(node.op, params, node.attrs, node.type, node.blocks)
    tupled = isinstance(node.type, TupleType)
    types = node.type.items if isinstance(node.type, TupleType) else (node.type,)
    items = [Node("item", (kernel,), {"index": i}, t) for i, t in enumerate(types)]
    body = Block(params, items if tupled else [kernel])

    def launch(inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]) -> None:
        assert all(t.is_contiguous() for t in (*inputs, *outputs))
        held = [decode(to_numpy(x, a.dtype), a.dtype) for x, a in zip(inputs, node.args)]
        results = evaluate(body, held, NumpySpace())
        stored = [encode(np.asarray(r), t.dtype) for r, t in zip(results, types)]
        for out, made in zip(outputs, upload(stored, types, out_device(outputs))):
            out.copy_(made)

    return OnArrays(launch)


def out_device(outputs: Sequence[torch.Tensor]) -> torch.device:
    return outputs[0].device


def compile_program(func: Func, options: dict[str, Any]) -> Executable:
    device = str(options.get("device", "cpu"))
    program = BlockProgram(func.body, TorchDevice(device), load, options.get("call_opaque"))
    kernels = [describe(func, step.node, step.library) for step in program.steps]
    return executable(func, program, kernels, {}, graph=bool(options.get("graph", True)))


BACKEND = Backend(
    name="device-test",
    compile=compile_program,
    missing=lambda: None,
    lowering=Lowering("tile", STAGES),
)


def with_stages(stages: Sequence[tuple[str, str]]) -> Backend:
    """The backend with other stages."""
    return replace(BACKEND, lowering=replace(BACKEND.lowering, stages=tuple(stages)))
