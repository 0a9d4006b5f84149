"""The steps of a program: each reads some values and writes or allocates others."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, field

from stack.errors import StackError
from stack.ir.node import Node

from .device import Bound, Device, DeviceKernel, Fill, Make
from .values import Array, RuntimeValue


@dataclass(eq=False)
class RuntimeStep:
    """One step. `library` names the library it calls. `capturable`: a CUDA graph can contain it."""

    node: Node
    args: Sequence[RuntimeValue]
    outs: Sequence[RuntimeValue]
    library: str = field(default="", kw_only=True)
    capturable: bool = field(default=True, kw_only=True)

    def bind(self, device: Device) -> Bound:
        """Returns the function that executes the step, once all arrays in the arena are known."""
        raise NotImplementedError

    def no_memory(self, device: Device, error: Exception) -> StackError:
        """Returns the error to raise if the library of this step ran out of memory.

        It names the results that the memory was for.
        """
        asked = sum(v.bytes for v in self.outs)
        names = ", ".join(v.what for v in self.outs)
        what = f"{self.library or self.node.op} for {names}"
        return StackError(device.shortage(error, asked, what))


class OnArrays:
    """A kernel that is called with two lists of arrays: those it reads, and those it writes."""

    def __init__(self, launch: Fill) -> None:
        self.launch = launch

    def bind(self, args: Sequence[RuntimeValue], outs: Sequence[RuntimeValue]) -> Bound:
        return lambda _: self.launch([v.get() for v in args], [v.get() for v in outs])


@dataclass(eq=False)
class KernelStep(RuntimeStep):
    """A step that launches one of our kernels."""

    kernel: DeviceKernel

    def bind(self, device: Device) -> Bound:
        return self.kernel.bind(self.args, self.outs)


@dataclass(eq=False)
class FillingStep(RuntimeStep):
    """A library call that writes its results into arrays that exist already."""

    fill: Fill

    def bind(self, device: Device) -> Bound:
        def run(_: int) -> None:
            try:
                self.fill([v.get() for v in self.args], [v.get() for v in self.outs])
            except device.out_of_memory as error:
                raise self.no_memory(device, error) from error

        return run


@dataclass(eq=False)
class MakingStep(RuntimeStep):
    """A step that allocates its results: control flow, a framework call, or a library call.

    `dropped`: numbers of the results that nobody reads.
    """

    make: Make
    dropped: Container[int] = ()

    def bind(self, device: Device) -> Bound:
        def run(stream: int) -> None:
            arrays = [v.get() for v in self.args]
            try:
                results = self.make(arrays, stream)
            except device.out_of_memory as error:
                raise self.no_memory(device, error) from error
            taken = {device.address(a) for a in arrays}
            for number, (value, made) in enumerate(zip(self.outs, results, strict=True)):
                if number in self.dropped:
                    continue
                # a loop returns operands that it passes on; another value may reuse their memory
                address = device.address(made)
                own = device.copy(made) if address in taken else made
                taken.add(address)
                value.put(own.reshape(value.shape))

        return run


def allocating(launch: Bound, values: Sequence[tuple[RuntimeValue, Callable[[], Array]]]) -> Bound:
    """Returns a function that allocates the arrays of some values and then calls `launch`.

    `values` are the results that no earlier step writes, each with its allocator.
    """

    def run(stream: int) -> None:
        for value, allocate in values:
            value.put(allocate())
        launch(stream)

    return run


def releasing(launch: Bound, values: Sequence[RuntimeValue]) -> Bound:
    """Returns a function that calls `launch`, then drops the arrays of values.

    No later step reads these values.
    """

    def run(stream: int) -> None:
        launch(stream)
        for value in values:
            value.array = None

    return run
