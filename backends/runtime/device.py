"""The interface between a program and the device it runs on.

Arrays are those of the device's library: NumPy's on a CPU, torch's on a GPU. The runtime only
slices, reshapes and counts them. The device does everything else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from stack.ir.node import Node
from stack.ir.types import DType

from .values import Array, RuntimeValue

Bound = Callable[[int], None]  # a step whose arrays are known; takes the handle of a stream
Make = Callable[[Sequence[Array], int], list[Array]]  # arrays, the handle of a stream: results
Work = Callable[[Iterable[Array], int], list[Array]]  # as `Make`, but consumes an iterable
Fill = Callable[[Sequence[Array], Sequence[Array]], None]  # reads the first, writes the second
# runs an opaque node of a framework, on storage arrays in host memory
CallOpaque = Callable[[str, Any, Sequence[np.ndarray]], list[np.ndarray]]


class DeviceKernel(Protocol):
    """A kernel loaded on a device."""

    def bind(self, args: Sequence[RuntimeValue], outs: Sequence[RuntimeValue]) -> Bound:
        """Returns a launch function that reads the arrays of `args` and writes those of `outs`."""
        ...


Load = Callable[[Node], DeviceKernel]


@dataclass(frozen=True)
class LibraryCall:
    """A library call for a group that none of our kernels computes.

    Attributes:
        name: of the library call, such as "torch.matmul".
        fill: writes results into arrays that exist already.
        make: allocates the results itself, if `fill` would need a copy. Exactly one of `fill` and
            `make` is given.
        capturable: True if a CUDA graph can contain the call.
    """

    name: str
    fill: Fill | None = None
    make: Make | None = None
    capturable: bool = True


class Device(Protocol):
    """The device of a program and of the programs inside it."""

    @property
    def out_of_memory(self) -> type[Exception]:
        """The exception that the device's library raises if memory runs out."""
        ...

    def dtype(self, dtype: DType) -> Any:
        """The array element type that stores an element type of the IR; has an `itemsize`."""
        ...

    def memory(self, size: int, what: str) -> Array:
        """Uninitialized bytes. Raises StackError that names their purpose (`what`)."""
        ...

    def allocator(self, shape: tuple[int, ...], dtype: Any, what: str) -> Callable[[], Array]:
        """Returns a function that allocates dense, uninitialized arrays.

        It raises StackError as `memory` does.
        """
        ...

    def address(self, array: Array, /) -> int:
        """The address of the first element."""
        ...

    def copy(self, array: Array, /) -> Array:
        """A copy of the array in memory of its own."""
        ...

    def constant(self, node: Node) -> Array:
        """The dense array of a `const` node."""
        ...

    def library(self, node: Node) -> LibraryCall:
        """Returns the library call of a group or bare op. Raises StackError if there is none."""
        ...

    def opaque(self, node: Node, call: CallOpaque) -> Make:
        """Returns the function that executes an `opaque` node. Results never alias operands."""
        ...

    def control(self, node: Node, read: Sequence[int], load: Load) -> DeviceKernel | None:
        """Returns a kernel that executes a control flow node; None if Python executes it.

        It writes only the results whose numbers are in `read`.
        """
        ...

    def hosted(self, node: Node) -> LibraryCall:
        """Returns the code of a hosted operator (a `custom` node). It allocates its results."""
        ...

    def within(self, run: Work, arrays: Iterable[Array]) -> list[Array]:
        """Call `run` with the device as the current one, after pending work on its arena.

        The arrays are passed on; no reference to them is kept.
        """
        ...

    def shortage(self, error: BaseException, asked: int, what: str) -> str:
        """An error text: what ran out of memory, for which purpose, and how much is left."""
        ...

    def mark(self) -> Any:
        """A timestamp on the device's own clock."""
        ...

    def seconds(self, marks: Sequence[Any]) -> list[float]:
        """Seconds from each mark to the next; waits for the last one."""
        ...
