"""What a program asks of the device that it runs on.

Arrays are what the device's library has: NumPy's on a CPU, torch's on a GPU. The runtime only
slices, reshapes and counts them; all else is asked of the device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from stack.ir.node import Node
from stack.ir.types import DType

from .values import Array, Value

if TYPE_CHECKING:
    from .program import Program

Bound = Callable[[int], None]  # a step with its arrays in place; takes the handle of a stream
Make = Callable[[Sequence[Array], int], list[Array]]  # arrays, the handle of a stream: results
Work = Callable[[Iterable[Array], int], list[Array]]  # as `Make`, of arrays one by one
Fill = Callable[[Sequence[Array], Sequence[Array]], None]  # reads the first, writes the second
# runs an opaque node of a framework, on storage arrays in host memory
CallOpaque = Callable[[str, Any, Sequence[np.ndarray]], list[np.ndarray]]


class Kernel(Protocol):
    """A kernel that is loaded on a device."""

    def bind(self, args: Sequence[Value], outs: Sequence[Value]) -> Bound:
        """What launches it: it reads the arrays of `args` and writes those of `outs`."""
        ...


Load = Callable[[Node], Kernel]


@dataclass(frozen=True)
class Library:
    """What runs a group that no kernel of ours does.

    Attributes:
        name: of the library call, as "torch.matmul".
        fill: writes results where they are to be.
        make: allocates them itself, where `fill` would take a copy; one of the two is given.
        capturable: whether a CUDA graph can hold it.
    """

    name: str
    fill: Fill | None = None
    make: Make | None = None
    capturable: bool = True


class Device(Protocol):
    """Where a program runs, and how. One program, with those inside of it, has one device."""

    @property
    def out_of_memory(self) -> type[Exception]:
        """What its library raises."""
        ...

    def dtype(self, dtype: DType) -> Any:
        """The element type of arrays that hold an element type of the IR; has an `itemsize`."""
        ...

    def memory(self, size: int, what: str) -> Array:
        """Bytes without values. Raises StackError that names what they are for."""
        ...

    def allocator(self, shape: tuple[int, ...], dtype: Any, what: str) -> Callable[[], Array]:
        """What gives a dense array without values. Raises StackError as `memory` does."""
        ...

    def address(self, array: Array, /) -> int:
        """Where the first element is."""
        ...

    def copy(self, array: Array, /) -> Array:
        """The same values in memory of their own."""
        ...

    def constant(self, node: Node) -> Array:
        """The dense array of a `const` node."""
        ...

    def library(self, node: Node) -> Library:
        """What runs a library group or a bare op. Raises StackError where nothing does."""
        ...

    def opaque(self, node: Node, call: CallOpaque) -> Make:
        """What runs an `opaque` node; its results share no memory with operands."""
        ...

    def hosted(self, node: Node) -> Library:
        """The code of a hosted operator that a `custom` node is kept for; it makes its results."""
        ...

    def loop(self, test: Program, body: Program) -> Make | None:
        """What runs a `while` at once; None where it goes turn by turn."""
        ...

    def within(self, run: Work, arrays: Iterable[Array]) -> list[Array]:
        """Call `run` with the device as the current one, after what still uses its arena.

        The arrays are passed on, and not held.
        """
        ...

    def shortage(self, error: BaseException, asked: int, what: str) -> str:
        """What ran out of memory, for whom, and what is left, in words."""
        ...

    def mark(self) -> Any:
        """A moment of the device's own time."""
        ...

    def seconds(self, marks: Sequence[Any]) -> list[float]:
        """The time from each mark to the next; waits for the last."""
        ...
