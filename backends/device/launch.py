"""Launches machine code with one call of the driver.

Every value of a program has a slot of host memory that contains the address of its array. The
arguments of a kernel are laid out once and point to those slots. Between calls only the slots
change.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from ctypes import addressof
from dataclasses import dataclass
from typing import Any

import torch

from stack.ir.node import Node
from stack.ir.refusal import KernelRefused

from ..runtime.device import Bound, RuntimeValue, Table
from .driver import DriverError, Function, TensorMap, check, driver, launch_config
from .torch_device import stream_of


@dataclass(frozen=True)
class TensorMapArgument:
    """A kernel argument that is a tensor map of one of the kernel's arrays.

    `array` is the number of that array among the kernel's arrays; the rest are arguments of
    `TensorMap`.
    """

    array: int
    shape: tuple[int, ...]
    block: tuple[int, ...]
    kind: int
    swizzle: int
    width: int

    def map(self) -> TensorMap:
        return TensorMap(self.shape, self.block, self.kind, self.swizzle, self.width)


# the number of an array (passed as its address), a tensor map of one, or a constant of ctypes
Argument = int | TensorMapArgument | Any


@contextmanager
def refused_on_load(kernel: Node) -> Iterator[None]:
    """Raises KernelRefused if the driver refuses the code of a kernel."""
    try:
        yield
    except DriverError as error:
        if error.is_fault:
            raise
        raise KernelRefused({kernel: str(error)}) from error


class LoadedKernel:
    """A kernel loaded on a device, with its launch parameters.

    Args:
        function: its code.
        blocks, threads: the number of thread blocks, and the three sizes of a block.
        device: the device of the tensors that it is called with.
        arguments: its arguments, in order; None for the addresses of all its arrays.
    """

    def __init__(
        self,
        function: Function,
        blocks: int,
        threads: tuple[int, int, int],
        device: torch.device,
        arguments: Sequence[Argument] | None = None,
    ) -> None:
        self.function, self.blocks, self.threads = function, blocks, threads
        self.device = device
        self.arguments = arguments
        self.alone: tuple[list[Table], Bound] | None = None

    def bind(self, args: Sequence[RuntimeValue], outs: Sequence[RuntimeValue]) -> Bound:
        """Returns a function that launches the kernel on the arrays of these values."""
        return self.launcher([v.cell() for v in (*args, *outs)])

    def launcher(self, argument_buffer: Sequence[Table]) -> Bound:
        """Returns a function that launches the kernel on the arrays with these slots' addresses."""
        maps: list[tuple[TensorMap, Table]] = []
        arguments = range(len(argument_buffer)) if self.arguments is None else self.arguments
        given = (ctypes.c_void_p * len(arguments))()
        for number, argument in enumerate(arguments):
            if isinstance(argument, TensorMapArgument):
                made = argument.map()
                maps.append((made, argument_buffer[argument.array]))
                given[number] = made.address
            elif isinstance(argument, int):
                given[number] = addressof(argument_buffer[argument])
            else:
                given[number] = addressof(argument)
        config = launch_config((self.blocks, 1, 1), self.threads, self.function.shared)
        last = -1  # the stream in the launch configuration
        launch, handle, at_given = driver().cuLaunchKernelEx, self.function.handle, addressof(given)

        def run(stream: int, keep: object = (self, given, argument_buffer)) -> None:
            for made, slot in maps:
                if made.pointer != slot[0]:
                    made.point(slot[0])
            nonlocal last
            if stream != last:
                config.hStream = last = stream
            (status,) = launch(config, handle, at_given, 0)
            if status:
                check(status, f"launching kernel {self.function.name}")

        return run

    def __call__(self, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]) -> None:
        """Launch the kernel on tensors, on the current stream."""
        tensors = (*inputs, *outputs)
        if self.alone is None:
            argument_buffer = [(ctypes.c_uint64 * 1)() for _ in tensors]
            self.alone = argument_buffer, self.launcher(argument_buffer)
        argument_buffer, launch = self.alone
        for slot, tensor in zip(argument_buffer, tensors, strict=True):
            slot[0] = tensor.data_ptr()
        launch(stream_of(self.device))
