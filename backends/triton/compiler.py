"""A lowered function to Triton kernels: each distinct one is built once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from stack.errors import StackError
from stack.ir.cost import total
from stack.ir.names import unique_name
from stack.ir.node import Block, Func, Node, walk
from stack.run.backend import Executable, Kernel

from ..device.executable import default_device, describe, executable
from ..device.program import Program
from ..device.tensors import result_types
from ..peer import files
from . import build
from .printer import Source, print_kernel

ENTRY = "stack_kernel"
DEFAULT_TARGET = "sm_90"
Artifacts = dict[str, str | Callable[[], str]]
Launch = Callable[[Sequence[torch.Tensor], Sequence[torch.Tensor]], None]


class Compiler:
    """Kernels by body: equal bodies are built once, and have one name."""

    def __init__(self, func: Func, target: str) -> None:
        self.func = func
        self.target = target
        self.sources: dict[Block, Source] = {}
        self.readable: dict[str, tuple[str, Source, Node]] = {}
        self.binaries: dict[str, build.Binary] = {}
        self.taken: set[str] = set()

    def source(self, node: Node) -> Source:
        """What is compiled."""
        body = node.blocks[0]
        if body not in self.sources:
            made = self.sources[body] = print_kernel(node, ENTRY)
            if made.text not in self.readable:
                name = unique_name(str(node.attrs["name"]), self.taken, {})
                symbol = "".join(c if c.isalnum() else "_" for c in name)
                shown = print_kernel(node, symbol, readable=True)
                self.readable[made.text] = (name, shown, node)
        return self.sources[body]

    def binary(self, text: str) -> build.Binary:
        """Machine code of a printed kernel."""
        if text not in self.binaries:
            _, _, node = self.readable[text]
            self.binaries[text] = build.build(self.source(node), node, self.target)
        return self.binaries[text]

    def describe(self, node: Node, resources: dict[str, int] | None = None) -> Kernel:
        """The record of a kernel."""
        source = self.source(node)
        name, shown, _ = self.readable[source.text]
        body = node.blocks[0]
        lines = [line for places in body.locs.values() for line in places]
        types = [t for n in (*node.args, node) for t in result_types(n)]
        flops = total(body.nodes).flops
        return Kernel(
            name,
            "generated",
            shown.text,
            "py",
            self.func.body.names.get(node, ""),
            files([*self.func.body.locs.get(node, ()), *lines]),
            tuple(node.attrs.get("ops") or ()),
            float(flops) if isinstance(flops, int | float) else 0.0,
            float(sum(t.bytes for t in types if isinstance(t.bytes, int))),
            resources={
                **(resources or {}),
                "programs": source.programs,
                "warps": source.warps,
                "stages": source.stages,
            },
        )

    def artifacts(self) -> Artifacts:
        """Later stages of every distinct kernel, made when asked for."""

        def stage(make: Callable[[str], str]) -> Callable[[], str]:
            return lambda: "".join(
                f"# ---- {name}\n{make(text)}\n" for text, (name, _, _) in self.readable.items()
            )

        def at(name: str) -> Callable[[], str]:
            return stage(lambda text: self.binary(text).stages[name])

        return {
            "triton": stage(lambda text: self.readable[text][1].text),
            **{name: at(name) for name in build.STAGES},
            "sass": stage(lambda text: build.disassemble(self.binary(text).cubin)),
        }


def launcher(source: Source) -> Launch:
    """What launches a kernel on tensors: inputs, then outputs.

    A kernel that does not fit the shared memory loads fewer steps ahead; `source.stages` tells.
    """
    from triton.runtime.errors import OutOfResources

    kernel = build.function(source.text, source.name)
    places = {name: i for i, name in enumerate(source.parameters)}
    grid = (source.programs,)

    def run(inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]) -> None:
        tensors = [*inputs, *outputs]
        extra: list[Any] = []
        for d in source.descriptors:
            from triton.tools.tensor_descriptor import TensorDescriptor

            matrix = tensors[places[d.memory]].view(d.shape)
            extra.append(TensorDescriptor.from_tensor(matrix, list(d.block)))
        while True:
            try:
                kernel[grid](*tensors, *extra, num_warps=source.warps, num_stages=source.stages)
                return
            except OutOfResources as error:
                if source.stages == 1:
                    raise StackError(
                        f"kernel {source.name} does not fit the GPU: {error}"
                    ) from error
                # Triton's own copies beside the steps cannot be told before it has compiled
                source.stages -= 1

    return run


def compile_program(func: Func, options: dict[str, Any]) -> Executable:
    """Plan a function whose kernels are at the tile level on a device.

    Options:
        device: "cuda" or "cuda:1"; "cpu" under TRITON_INTERPRET=1.
        call_opaque: what runs `opaque` nodes.
        graph: False to launch step by step instead of replaying CUDA graphs.
    """
    device = torch.device(options.get("device") or default_device())
    target = DEFAULT_TARGET
    if device.type == "cuda":
        major, minor = torch.cuda.get_device_capability(device)
        target = f"sm_{major}{minor}"
    compiler = Compiler(func, target)

    def load(node: Node) -> Launch:
        return launcher(compiler.source(node))

    program = Program(func.body, load, options.get("call_opaque"), device)
    kernels = [
        compiler.describe(step.node)
        if step.node.op == "kernel"
        else describe(func, step.node, step.library)
        for step in program.steps
    ]
    return executable(func, program, kernels, compiler.artifacts(), options.get("graph", True))


def inspect_program(func: Func, options: dict[str, Any]) -> tuple[list[Kernel], Artifacts]:
    """Kernels and later stages of a lowered function, without a device.

    Options:
        target: the GPU, as "sm_90".
    """
    compiler = Compiler(func, options.get("target") or DEFAULT_TARGET)
    for _, node in walk(func.body):
        if node.op == "kernel":
            compiler.source(node)
    kernels: list[Kernel] = []
    for node in func.nodes:
        if node.op == "kernel":
            binary = compiler.binary(compiler.source(node).text)
            kernels.append(compiler.describe(node, binary.resources))
        elif node.op in ("fusion", "opaque", "call", "cond", "while", "custom", "dot", "conv"):
            kernels.append(describe(func, node, "torch" if node.op != "opaque" else ""))
    return kernels, compiler.artifacts()
