"""The steps of a program: each reads some values and writes or makes others."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from stack.errors import StackError
from stack.ir.node import Node

from .launch import Bound, Cells, Loaded
from .library import DeviceSpace, Launch, library_step
from .tensors import memory_text
from .values import Value

Tensor = torch.Tensor
# ops that look at values on the host
_NOT_CAPTURABLE: frozenset[str] = frozenset({"cond", "while", "opaque"})


class Step:
    """One step. `library` names what runs it; `capturable` says if a CUDA graph can hold it."""

    def __init__(
        self, node: Node, args: list[Value], outs: list[Value], library: str, capturable: bool
    ) -> None:
        self.node = node
        self.args = args
        self.outs = outs
        self.library = library
        self.capturable = capturable

    def bind(self, cells: Cells) -> Bound:
        """What runs it on the current stream, which it is given; addresses are in the cells."""
        raise NotImplementedError


class KernelStep(Step):
    """A kernel of ours."""

    def __init__(
        self, node: Node, args: list[Value], outs: list[Value], launch: Launch | Loaded
    ) -> None:
        super().__init__(node, args, outs, "", True)
        self.launch = launch

    def bind(self, cells: Cells) -> Bound:
        if isinstance(self.launch, Loaded):
            return self.launch.bind(cells, [v.cell for v in (*self.args, *self.outs)])
        launch = self.launch
        return lambda _: launch([v.get() for v in self.args], [v.get() for v in self.outs])


class LibraryStep(Step):
    """A library call, or ops of torch one after another."""

    def __init__(
        self, node: Node, args: list[Value], outs: list[Value], space: DeviceSpace
    ) -> None:
        inside = {n.op for b in node.blocks for n in b.nodes}
        launch, library = library_step(node, space)
        super().__init__(node, args, outs, library, not inside & _NOT_CAPTURABLE)
        self.launch = launch

    def bind(self, cells: Cells) -> Bound:
        return lambda _: self._run()

    def _run(self) -> None:
        try:
            self.launch([v.get() for v in self.args], [v.get() for v in self.outs])
        except torch.OutOfMemoryError as error:
            raise _no_memory(self, error) from error


class MakingStep(Step):
    """Control flow, a call of the framework, or a library that allocates: makes its results."""

    def __init__(
        self,
        node: Node,
        args: list[Value],
        outs: list[Value],
        call: Callable[[Sequence[Tensor]], list[Tensor]],
        library: str,
        capturable: bool,
    ) -> None:
        super().__init__(node, args, outs, library, capturable)
        self.call = call

    def bind(self, cells: Cells) -> Bound:
        return lambda _: self._run(cells)

    def _run(self, cells: Cells) -> None:
        inputs = [v.get() for v in self.args]
        taken = {_memory(t) for t in inputs}
        try:
            results = self.call(inputs)
        except torch.OutOfMemoryError as error:
            raise _no_memory(self, error) from error
        for value, made in zip(self.outs, results, strict=True):
            # views, and what a loop of no turns gives back: others take the places of operands
            is_shared = _memory(made) in taken
            taken.add(_memory(made))
            own = made.clone(memory_format=torch.contiguous_format) if is_shared else made
            value.put(own.contiguous().view(value.shape), cells)


def _memory(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def releasing(launch: Bound, values: Sequence[Value]) -> Bound:
    """A step after which nobody reads some values that were made: their memory is free again."""

    def run(stream: int) -> None:
        launch(stream)
        for value in values:
            value.tensor = None

    return run


def _no_memory(step: Step, error: BaseException) -> StackError:
    asked = sum(v.bytes for v in step.outs)
    names = ", ".join(v.what for v in step.outs)
    what = f"{step.library or step.node.op} for {names}"
    device = step.outs[0].tensor.device if step.outs[0].tensor is not None else "the device"
    return StackError(memory_text(error, asked, torch.device(device), what))
