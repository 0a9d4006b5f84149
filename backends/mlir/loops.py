"""Loops of a program whose steps are all kernels of ours, in one native call.

The native loop calls kernels by the tables that they are called with: one pair of code and table
for each step, test first. What a turn carries is written beside what it reads, and the next turn
reads it there: there are two tables for each step, and turns alternate. What is updated in place,
or only passed on, has one place in both.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import numpy as np

from stack.run.cache import Cache

from ..runtime.program import Program
from ..runtime.steps import KernelStep, Step
from ..runtime.values import Value
from . import jit
from .address import address

Table = ctypes.Array[ctypes.c_int64]

_HEAD = 4  # slots before the pairs: number of tests, of steps, address of the flags, last turn
_PAIR = 2

# A turn: tests, one look at the flag, steps. The pairs of even turns come first, then those of odd.
TEXT = """\
llvm.func @memcpy(!llvm.ptr, !llvm.ptr, i64) -> !llvm.ptr

llvm.func @copy(%table: !llvm.ptr) {
  %to_at = llvm.getelementptr %table[0] : (!llvm.ptr) -> !llvm.ptr, i64
  %from_at = llvm.getelementptr %table[1] : (!llvm.ptr) -> !llvm.ptr, i64
  %size_at = llvm.getelementptr %table[2] : (!llvm.ptr) -> !llvm.ptr, i64
  %to = llvm.load %to_at : !llvm.ptr -> !llvm.ptr
  %from = llvm.load %from_at : !llvm.ptr -> !llvm.ptr
  %size = llvm.load %size_at : !llvm.ptr -> i64
  %done = llvm.call @memcpy(%to, %from, %size) : (!llvm.ptr, !llvm.ptr, i64) -> !llvm.ptr
  llvm.return
}

llvm.func internal @calls(%pairs: !llvm.ptr, %first: i64, %last: i64) {
  %one = arith.constant 1 : i64
  %two = arith.constant 2 : i64
  llvm.br ^look(%first : i64)
^look(%i: i64):
  %more = arith.cmpi slt, %i, %last : i64
  llvm.cond_br %more, ^call, ^out
^call:
  %place = arith.muli %i, %two : i64
  %beside = arith.addi %place, %one : i64
  %code_at = llvm.getelementptr %pairs[%place] : (!llvm.ptr, i64) -> !llvm.ptr, i64
  %table_at = llvm.getelementptr %pairs[%beside] : (!llvm.ptr, i64) -> !llvm.ptr, i64
  %code = llvm.load %code_at : !llvm.ptr -> !llvm.ptr
  %table = llvm.load %table_at : !llvm.ptr -> !llvm.ptr
  llvm.call %code(%table) : !llvm.ptr, (!llvm.ptr) -> ()
  %next = arith.addi %i, %one : i64
  llvm.br ^look(%next : i64)
^out:
  llvm.return
}

llvm.func @turns(%table: !llvm.ptr) {
  %one = arith.constant 1 : i64
  %zero = arith.constant 0 : i64
  %off = arith.constant 0 : i8
  %tests = llvm.load %table : !llvm.ptr -> i64
  %steps_at = llvm.getelementptr %table[1] : (!llvm.ptr) -> !llvm.ptr, i64
  %flags_at = llvm.getelementptr %table[2] : (!llvm.ptr) -> !llvm.ptr, i64
  %turn_at = llvm.getelementptr %table[3] : (!llvm.ptr) -> !llvm.ptr, i64
  %pairs = llvm.getelementptr %table[4] : (!llvm.ptr) -> !llvm.ptr, i64
  %steps = llvm.load %steps_at : !llvm.ptr -> i64
  %flags = llvm.load %flags_at : !llvm.ptr -> !llvm.ptr
  %all = arith.addi %tests, %steps : i64
  llvm.br ^turn(%zero : i64)
^turn(%odd: i64):
  %first = arith.muli %odd, %all : i64
  %middle = arith.addi %first, %tests : i64
  %last = arith.addi %first, %all : i64
  llvm.call @calls(%pairs, %first, %middle) : (!llvm.ptr, i64, i64) -> ()
  %flag_at = llvm.getelementptr %flags[%odd] : (!llvm.ptr, i64) -> !llvm.ptr, i64
  %place = llvm.load %flag_at : !llvm.ptr -> !llvm.ptr
  %flag = llvm.load %place : !llvm.ptr -> i8
  %go = arith.cmpi ne, %flag, %off : i8
  llvm.cond_br %go, ^work, ^out
^work:
  llvm.call @calls(%pairs, %middle, %last) : (!llvm.ptr, i64, i64) -> ()
  %other = arith.subi %one, %odd : i64
  llvm.br ^turn(%other : i64)
^out:
  llvm.store %odd, %turn_at : i64, !llvm.ptr
  llvm.return
}
"""


def native_kernels(program: Program) -> list[tuple[Step, jit.Kernel]] | None:
    """The steps of a program with their code; None where one is no kernel of ours."""
    found: list[tuple[Step, jit.Kernel]] = []
    for step in program.steps:
        if not isinstance(step, KernelStep) or not isinstance(step.kernel, jit.Kernel):
            return None
        found.append((step, step.kernel))
    return found


class Loop:
    """A loop whose steps are all kernels."""

    def __init__(self, test: Program, body: Program, cache: Cache | None) -> None:
        library = jit.build(TEXT, ["turns", "copy"], cache)
        self.iterations, self.copy = library["turns"], library["copy"]
        self.held = test, body  # their code, constants and arenas
        self.types = [(v.shape, v.dtype) for v in body.inputs]
        # a place of the state is one number: that of its slot in even turns, past all in odd ones
        self.count = len(body.inputs)
        self.kept = {i for i, v in enumerate(body.results) if v.root is body.inputs[i]}
        self.passed = self.kept - body.updated
        self.tables: list[Table] = []
        self.patches: list[tuple[Table, int, int]] = []  # which slot of a table is which place
        self.flag = np.zeros((), np.bool_)
        self.flags = jit.table([self.flag.ctypes.data] * 2)
        pairs: list[int] = []
        for odd in (False, True):
            flag = test.results[0].root
            tested = self._where(test, odd)
            if flag in tested:
                self.patches.append((self.flags, int(odd), tested[flag]))
            elif flag.array is not None:
                self.flags[odd] = flag.array.ctypes.data
            pairs += self._steps(test, tested)
            found, copies = self._results(body, odd)
            pairs += self._steps(body, {**self._where(body, odd), **found})
            pairs += copies
        steps = len(pairs) // (2 * _PAIR) - len(test.steps)
        head = [len(test.steps), steps, ctypes.addressof(self.flags), 0]
        self.table = jit.table([*head, *pairs])

    def _place(self, slot: int, odd: bool) -> int:
        return slot if slot in self.kept or not odd else slot + self.count

    def _where(self, program: Program, odd: bool) -> dict[Value, int]:
        """The places that a turn reads."""
        return {v: self._place(i, odd) for i, v in enumerate(program.inputs)}

    def _results(self, body: Program, odd: bool) -> tuple[dict[Value, int], list[int]]:
        """The places that a turn writes; pairs that copy what is not written there."""
        found: dict[Value, int] = {}
        copies: list[int] = []
        read = self._where(body, odd)
        for slot, value in enumerate(body.results):
            root, place = value.root, self._place(slot, not odd)
            if slot in self.kept:
                continue
            if root.source == "output" and root not in found:
                found[root] = place
                continue
            at = root.array.ctypes.data if root.array is not None else 0
            table = self._table([0, at, root.bytes])
            self.patches.append((table, 0, place))
            if not at:
                self.patches.append((table, 1, found[root] if root in found else read[root]))
            copies += [self.copy.address, ctypes.addressof(table)]
        return found, copies

    def _steps(self, program: Program, places: dict[Value, int]) -> list[int]:
        pairs: list[int] = []
        for step, kernel in native_kernels(program) or ():
            roots = [v.root for v in (*step.args, *step.outs)]
            table = self._table([0] * len(roots))
            for slot, root in enumerate(roots):
                if root in places:
                    self.patches.append((table, slot, places[root]))
                elif root.array is not None:
                    table[slot] = root.array.ctypes.data
                else:  # only a test returns what no state is: its flag
                    table[slot] = self.flag.ctypes.data
            pairs += [kernel.address, ctypes.addressof(table)]
        return pairs

    def _table(self, slots: Sequence[int]) -> Table:
        self.tables.append(jit.table(slots))
        return self.tables[-1]

    def run(self, args: Sequence[np.ndarray], _: int) -> list[np.ndarray]:
        """The state after the last turn. Results may be operands that no turn changed."""
        state = list(args)
        for slot in range(self.count):
            if slot not in self.passed:
                state[slot] = state[slot].copy()
        other = [
            state[slot] if slot in self.kept else np.empty(shape, dtype)
            for slot, (shape, dtype) in enumerate(self.types)
        ]
        places = [address(a) for a in (*state, *other)]
        for table, slot, place in self.patches:
            table[slot] = places[place]
        self.iterations.raw(ctypes.addressof(self.table))
        return other if self.table[_HEAD - 1] else state
