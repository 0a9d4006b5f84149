"""The values of a program in memory, and the interface of the device it runs on.

Arrays are those of the device's library: NumPy's on a CPU, torch's on a GPU. The runtime only
slices, reshapes and counts them. The device does everything else.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from stack.ir.node import Node
from stack.ir.types import DType

Array = Any  # an array of the device's library
Table = ctypes.Array[Any]  # 8-byte numbers, among them addresses
Bound = Callable[[int], None]  # a step whose arrays are known; takes the handle of a stream
Make = Callable[[Sequence[Array], int], list[Array]]  # arrays, the handle of a stream: results
Work = Callable[[Iterable[Array], int], list[Array]]  # as `Make`, but consumes an iterable
Fill = Callable[[Sequence[Array], Sequence[Array]], None]  # reads the first, writes the second
# runs an opaque node of a framework, on storage arrays in host memory
CallOpaque = Callable[[str, Any, Sequence[np.ndarray]], list[np.ndarray]]


@dataclass(slots=True, eq=False, repr=False)
class RuntimeValue:
    """A value, its array while a program runs, and the tables that contain its address.

    `source` is "input", "output" (fresh at each call), "static" (a constant, or part of an arena
    that is kept), "arena" (part of an arena that each call allocates), "made" (allocated by its
    step) or "view" (of `base`, whose address it has). `place` is the offset in the arena, and
    `arena` its array with the offset of the first byte.
    """

    what: str
    shape: tuple[int, ...]
    dtype: Any
    source: str
    address: Callable[[Array], int]
    base: RuntimeValue | None = None
    place: int | None = None
    arena: tuple[Array, int] | None = None
    array: Array | None = None
    slots: list[tuple[Table, int]] = field(default_factory=list[tuple[Table, int]])
    own: Table | None = None

    @property
    def bytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def root(self) -> RuntimeValue:
        """The value that a chain of views finally refers to."""
        value = self
        while value.source == "view" and value.base is not None:
            value = value.base
        return value

    def put(self, array: Array) -> None:
        """Sets the array of the value, and writes its address to all tables that contain it."""
        self.array = array
        if self.slots:
            address = self.address(array)
            for table, slot in self.slots:
                table[slot] = address

    def put_in(self, arena: Array, start: int, address: int) -> None:
        """Places the value in an arena, whose first byte is at `start` of the array and has this
        address; writes the value's address to all tables that contain it.
        """
        assert self.place is not None
        self.array, self.arena = None, (arena, start)
        for table, slot in self.slots:
            table[slot] = address + self.place

    def drop(self) -> None:
        """Drops the references to the value's memory."""
        self.array = self.arena = None

    def get(self) -> Array:
        """Returns the array of the value: a view of the arena or of another value's array, if the
        value has no array of its own.
        """
        if self.array is None and self.arena is not None and self.place is not None:
            arena, start = self.arena
            raw = arena[start + self.place : start + self.place + self.bytes]
            self.array = raw.view(self.dtype).reshape(self.shape)
        elif self.array is None:
            assert self.root is not self, f"{self.what} is read before it is written"
            self.array = self.root.get().reshape(self.shape)
        return self.array

    def tell(self, table: Table, slot: int) -> None:
        """Writes the value's address to a slot of a kernel's table, now and whenever it changes."""
        root = self.root
        root.slots.append((table, slot))
        if root.array is not None:
            table[slot] = root.address(root.array)

    def cell(self) -> Table:
        """Returns a table with only this value's address, for kernels that take a pointer to it."""
        root = self.root
        if root.own is None:
            root.own = (ctypes.c_uint64 * 1)()
            root.tell(root.own, 0)
        return root.own


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
