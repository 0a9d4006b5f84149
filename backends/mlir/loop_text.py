"""The text of a native loop: its kernels, their cells and arrays, and its carried state."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import NamedTuple

from ..runtime.values import Table
from .module_batches import module_of

NAME = "iterations"
HEAD = 1  # slots before pointers: 1 if the final state is in the other arrays
_COPY = "(!llvm.ptr, !llvm.ptr, i64) -> ()"


class State(NamedTuple):
    """The memory of a loop-carried value, which is number `slot` among these values.

    By default the copy that an iteration reads; with `is_next`, the one it writes for the next one.
    """

    slot: int
    is_next: bool = False


class Cell(NamedTuple):
    """A local variable of the function for a value of one element, passed between kernels."""

    name: str


class Static(NamedTuple):
    """Memory at a fixed address, given as its number among the function's pointers."""

    number: int


Pointer = State | Cell | Static


class LoopText:
    """The text of a native loop as one function over a table of addresses.

    Args:
        sizes: bytes of each part of the state that is a single element; 0 for an array.
        kept: parts that are updated in place, without a second buffer.
    """

    def __init__(self, sizes: Sequence[int], kept: set[int]) -> None:
        self.sizes = sizes
        self.kept = kept
        self.pointers: list[int] = []  # addresses after the head, those of the state first
        self.numbers: dict[int, int] = {}
        self.entry: list[str] = []
        self.body: list[str] = []
        self.texts: list[str] = []
        self.count = 0
        # arrays with two buffers, which iterations swap
        self.pairs = [s for s, size in enumerate(sizes) if not size and s not in kept]
        for slot, size in enumerate(sizes):
            self._pointer(0, f"%state{slot}")
            self._pointer(0, f"%other{slot}")
            if size:
                for name in (f"%now{slot}", f"%next{slot}"):
                    self._alloca(name, f"i{8 * size}", 1)
                self._move(self.entry, f"%now{slot}", f"%state{slot}", size)

    def fill(self, table: Table, state: Sequence[int], other: Sequence[int]) -> None:
        """Writes the addresses of both buffers of each loop-carried value into a table.

        `state` has the initial values; `other` the second buffers.
        """
        for slot, pair in enumerate(zip(state, other, strict=True)):
            table[HEAD + 2 * slot], table[HEAD + 2 * slot + 1] = pair

    def cell(self, size: int) -> Cell:
        """Declares a local variable of `size` bytes for a value between kernels."""
        name = self._fresh("cell")
        self._alloca(name, f"i{8 * size}", 1)
        return Cell(name)

    def static(self, address: int) -> Static:
        """The memory at a fixed address."""
        if address not in self.numbers:
            self.numbers[address] = len(self.pointers)
            self._pointer(address, f"%static{len(self.pointers)}")
        return Static(self.numbers[address])

    def call(self, kernel: str | int, operands: Sequence[Pointer]) -> None:
        """Appends a call of a kernel, given by its text or address, with these operands."""
        table = self._fresh("table")
        self._alloca(table, "!llvm.ptr", len(operands))
        for i, operand in enumerate(operands):
            slot = self._fresh("slot")
            self.body += [
                f"{slot} = llvm.getelementptr {table}[{i}] : (!llvm.ptr) -> !llvm.ptr, !llvm.ptr",
                f"llvm.store {self._name(operand)}, {slot} : !llvm.ptr, !llvm.ptr",
            ]
        if isinstance(kernel, str):
            self.body.append(f"llvm.call @k{len(self.texts)}({table}) : (!llvm.ptr) -> ()")
            self.texts.append(kernel)
        else:
            code = self._name(self.static(kernel))
            self.body.append(f"llvm.call {code}({table}) : !llvm.ptr, (!llvm.ptr) -> ()")

    def test(self, flag: Pointer) -> None:
        """Appends an exit from the loop that is taken if the bool at `flag` is false."""
        self.body += [
            f"%flag = llvm.load {self._name(flag)} : !llvm.ptr -> i8",
            "%go = arith.cmpi ne, %flag, %off : i8",
            "llvm.cond_br %go, ^work, ^out",
            "^work:",
        ]

    def copy(self, target: State, source: Pointer, size: int) -> None:
        """Appends a copy of `size` bytes from `source` to a loop-carried value."""
        to, start = self._name(target), self._name(source)
        if self.sizes[target.slot]:
            self._move(self.body, to, start, size)
        else:
            count = self._fresh("size")
            self.entry.append(f"{count} = arith.constant {size} : i64")
            move = f'"llvm.intr.memcpy"({to}, {start}, {count}) <{{isVolatile = false}}> : {_COPY}'
            self.body.append(move)

    def module(self) -> tuple[str, str]:
        """Returns the text of the MLIR module of the loop, and the name of its function."""
        held = [f"%here{s}, %beside{s}" for s in self.pairs]
        swapped = [f"%beside{s}, %here{s}" for s in self.pairs]
        first = [f"%state{s}, %other{s}" for s in self.pairs]
        types = ", ".join(["i64", *["!llvm.ptr, !llvm.ptr"] * len(self.pairs)])
        params = ", ".join(
            [f"{n}: !llvm.ptr" for pair in held for n in pair.split(", ")],
        )
        lines = [
            *self.entry,
            f"llvm.br ^test({', '.join(['%zero', *first])} : {types})",
            f"^test({', '.join(filter(None, ['%odd: i64', params]))}):",
            *self.body,
        ]
        for slot, size in enumerate(self.sizes):
            if size and slot not in self.kept:
                self._move(lines, f"%now{slot}", f"%next{slot}", size)
        lines += [
            "%even = arith.subi %one, %odd : i64",
            f"llvm.br ^test({', '.join(['%even', *swapped])} : {types})",
            "^out:",
            "llvm.store %odd, %table : i64, !llvm.ptr",
        ]
        for slot, size in enumerate(self.sizes):
            if size:
                self._move(lines, f"%state{slot}", f"%now{slot}", size)
        function = "".join(f"  {line}\n" for line in (*_CONSTANTS, *lines, "llvm.return"))
        kernels = module_of(self.texts, [f"k{i}" for i in range(len(self.texts))])
        for i in range(len(self.texts)):
            kernels = kernels.replace(f"llvm.func @k{i}(", f"llvm.func internal @k{i}(")
        return f"{kernels}llvm.func @{NAME}(%table: !llvm.ptr) {{\n{function}}}\n", NAME

    def _pointer(self, address: int, name: str) -> None:
        slot = f"{name}_at"
        at = HEAD + len(self.pointers)
        self.pointers.append(address)
        self.entry += [
            f"{slot} = llvm.getelementptr %table[{at}] : (!llvm.ptr) -> !llvm.ptr, i64",
            f"{name} = llvm.load {slot} : !llvm.ptr -> !llvm.ptr",
        ]

    def _alloca(self, name: str, kind: str, count: int) -> None:
        size = self._fresh("count")
        self.entry += [
            f"{size} = llvm.mlir.constant({count} : i64) : i64",
            f"{name} = llvm.alloca {size} x {kind} {{alignment = {_WORD} : i64}}"
            " : (i64) -> !llvm.ptr",
        ]

    def _move(self, lines: list[str], to: str, start: str, size: int) -> None:
        made, kind = self._fresh("element"), f"i{8 * size}"
        lines += [
            f"{made} = llvm.load {start} {{alignment = 1 : i64}} : !llvm.ptr -> {kind}",
            f"llvm.store {made}, {to} {{alignment = 1 : i64}} : {kind}, !llvm.ptr",
        ]

    def _name(self, place: Pointer) -> str:
        if isinstance(place, Cell):
            return place.name
        if isinstance(place, Static):
            return f"%static{place.number}"
        slot, is_next = place
        is_next = is_next and slot not in self.kept
        if self.sizes[slot]:
            return f"%{'next' if is_next else 'now'}{slot}"
        if slot in self.kept:
            return f"%state{slot}"
        return f"%{'beside' if is_next else 'here'}{slot}"

    def _fresh(self, hint: str) -> str:
        self.count += 1
        return f"%{hint}_{self.count}"


_WORD = ctypes.sizeof(ctypes.c_int64)
_CONSTANTS = (
    "%zero = arith.constant 0 : i64",
    "%one = arith.constant 1 : i64",
    "%off = arith.constant 0 : i8",
)
