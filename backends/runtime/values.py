"""A value of a program and its memory."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

Array = Any  # an array of the device's library
Table = ctypes.Array[Any]  # 8-byte numbers, among them addresses


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
