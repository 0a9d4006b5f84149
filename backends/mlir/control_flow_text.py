"""The text of a native function with control flow: calls of kernels, copies, branches and loops."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from stack.ir.types import DType
from stack.target.record import LINE

from .jit import module_of

NAME = "control_flow"
WORD = ctypes.sizeof(ctypes.c_int64)
_COPY = "(!llvm.ptr, !llvm.ptr, i64) -> ()"
_UNALIGNED = "{alignment = 1 : i64}"


class FunctionText:
    """A function over a table of addresses. Memory is given by the name of a pointer.

    The table contains `given` addresses, then that of scratch memory, then those of constants and
    of kernels that are not part of the text. Local variables are in memory: LLVM promotes them to
    registers.
    """

    def __init__(self, given: int) -> None:
        self.entry = ["%first = arith.constant 0 : i64", "%off = arith.constant 0 : i8"]
        self.lines: list[str] = []
        self.kernels: dict[str, str] = {}  # names of functions, by their text
        self.count = 0
        self.given = [self._slot(number) for number in range(given)]
        self.start = self._slot(given)
        self.fixed: dict[int, str] = {}  # pointers, by address
        self.places: dict[int, str] = {}  # pointers, by offset in the scratch memory
        self.top = self.scratch = 0  # bytes of scratch memory: those in use, and the most ever

    # ---- memory

    def at(self, address: int) -> str:
        """Returns the pointer to a fixed address."""
        if address not in self.fixed:
            self.fixed[address] = self._slot(len(self.given) + 1 + len(self.fixed))
        return self.fixed[address]

    def reserve(self, size: int) -> int:
        """Reserves scratch memory; returns its offset."""
        start = self.top
        self.top = -(-(start + size) // LINE) * LINE
        self.scratch = max(self.scratch, self.top)
        return start

    def scratch_at(self, offset: int) -> str:
        """Returns the pointer to an offset of the scratch memory."""
        if offset not in self.places:
            name = self.places[offset] = f"%scratch{offset}"
            step = f"{self.start}[{offset}] : (!llvm.ptr) -> !llvm.ptr, i8"
            self.entry.append(f"{name} = llvm.getelementptr {step}")
        return self.places[offset]

    @contextmanager
    def released(self) -> Iterator[None]:
        """Lets later code reuse the scratch memory that is reserved within."""
        top = self.top
        yield
        self.top = top

    def cell(self, size: int) -> str:
        """Declares a local variable of `size` bytes; returns the pointer to it."""
        return self._alloca("cell", f"i{8 * size}", 1)

    def variable(self, pointer: str) -> str:
        """Declares a local variable for a pointer, and sets it."""
        name = self._alloca("variable", "!llvm.ptr", 1)
        self.set(name, pointer)
        return name

    def set(self, variable: str, pointer: str) -> None:
        """Sets a variable to a pointer."""
        self.lines.append(f"llvm.store {pointer}, {variable} : !llvm.ptr, !llvm.ptr")

    def get(self, variable: str) -> str:
        """Returns the pointer in a variable."""
        return self._new("pointer", f"llvm.load {variable} : !llvm.ptr -> !llvm.ptr")

    # ---- steps

    def call(self, kernel: str | int, operands: Sequence[str]) -> None:
        """Calls a kernel, given by its text or address."""
        table = self._alloca("table", "!llvm.ptr", len(operands))
        for i, operand in enumerate(operands):
            step = f"{table}[{i}] : (!llvm.ptr) -> !llvm.ptr, !llvm.ptr"
            self.set(self._new("slot", f"llvm.getelementptr {step}"), operand)
        if isinstance(kernel, str):
            name = self.kernels.setdefault(kernel, f"k{len(self.kernels)}")
            self.lines.append(f"llvm.call @{name}({table}) : (!llvm.ptr) -> ()")
        else:
            code = self.at(kernel)
            self.lines.append(f"llvm.call {code}({table}) : !llvm.ptr, (!llvm.ptr) -> ()")

    def copy(self, target: str, source: str, size: int) -> None:
        """Copies memory, unless both pointers are the same."""
        if target == source or not size:
            return
        if size <= WORD and not size & (size - 1):
            kind = f"i{8 * size}"
            made = self._new("element", f"llvm.load {source} {_UNALIGNED} : !llvm.ptr -> {kind}")
            self.lines.append(f"llvm.store {made}, {target} {_UNALIGNED} : {kind}, !llvm.ptr")
            return
        differs = self._new("differs", f'llvm.icmp "ne" {target}, {source} : !llvm.ptr')
        self.lines.append(f"scf.if {differs} {{")
        count = self._new("size", f"arith.constant {size} : i64")
        move = f'"llvm.intr.memcpy"({target}, {source}, {count}) <{{isVolatile = false}}> : {_COPY}'
        self.lines += [move, "}"]

    # ---- branches and loops

    def number(self, source: str, dtype: DType, count: int) -> str:
        """Returns the integer at `source` as an i64, clamped to 0 and `count - 1`."""
        kind, is_signed = f"i{8 * dtype.bytes}", dtype.kind == "i"
        made = self._new("number", f"llvm.load {source} : !llvm.ptr -> {kind}")
        if dtype.bytes < WORD:
            widen = "arith.extsi" if is_signed else "arith.extui"
            made = self._new("number", f"{widen} {made} : {kind} to i64")
        if is_signed:
            made = self._new("number", f"arith.maxsi {made}, %first : i64")
        last = self._new("last", f"arith.constant {count - 1} : i64")
        return self._new("number", f"arith.minui {made}, {last} : i64")

    def cases(self, number: str, count: int) -> Iterator[int]:
        """Yields the numbers of cases; the code written meanwhile runs if `number` is that case."""
        for case in range(count - 1):
            wanted = self._new("case", f"arith.constant {case} : i64")
            test = self._new("is_case", f"arith.cmpi eq, {number}, {wanted} : i64")
            self.lines.append(f"scf.if {test} {{")
            yield case
            self.lines.append("} else {")
        yield count - 1
        self.lines += ["}"] * (count - 1)

    @contextmanager
    def loop(self) -> Iterator[None]:
        """Writes a loop: the code that is written within tests, and after `go_on` is the body."""
        self.lines.append("scf.while : () -> () {")
        yield
        self.lines += ["scf.yield", "}"]

    def go_on(self, flag: str) -> None:
        """Leaves the loop if the bool at `flag` is false."""
        found = self._new("flag", f"llvm.load {flag} : !llvm.ptr -> i8")
        test = self._new("goes_on", f"arith.cmpi ne, {found}, %off : i8")
        self.lines += [f"scf.condition({test})", "} do {"]

    def module(self) -> str:
        """Returns the text of the MLIR module of the function."""
        function = "".join(f"  {line}\n" for line in (*self.entry, *self.lines, "llvm.return"))
        kernels = module_of(list(self.kernels), list(self.kernels.values()))
        for name in self.kernels.values():
            kernels = kernels.replace(f"llvm.func @{name}(", f"llvm.func internal @{name}(")
        return f"{kernels}llvm.func @{NAME}(%table: !llvm.ptr) {{\n{function}}}\n"

    def _slot(self, number: int) -> str:
        self.entry += [
            f"%at{number} = llvm.getelementptr %table[{number}] : (!llvm.ptr) -> !llvm.ptr, i64",
            f"%given{number} = llvm.load %at{number} : !llvm.ptr -> !llvm.ptr",
        ]
        return f"%given{number}"

    def _alloca(self, hint: str, kind: str, count: int) -> str:
        self.count += 1
        name, size = f"%{hint}_{self.count}", f"%count_{self.count}"
        self.entry += [
            f"{size} = llvm.mlir.constant({count} : i64) : i64",
            f"{name} = llvm.alloca {size} x {kind} {{alignment = {WORD} : i64}}"
            " : (i64) -> !llvm.ptr",
        ]
        return name

    def _new(self, hint: str, operation: str) -> str:
        self.count += 1
        name = f"%{hint}_{self.count}"
        self.lines.append(f"{name} = {operation}")
        return name
