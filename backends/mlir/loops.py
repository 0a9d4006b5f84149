"""Loops of a program whose steps are all kernels of ours, as one native function.

Small kernels become part of the function, where LLVM keeps single elements that the loop carries in
registers; larger ones are called. An array that an iteration makes anew is written beside the one
that it reads, and the next iteration exchanges the two. What is updated in place, or only passed
on, has one place.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence

import numpy as np

from stack.run.cache import Cache

from ..runtime.program import Program
from ..runtime.steps import KernelStep, Step
from ..runtime.values import Value
from . import jit
from .address import address
from .loop_text import Cell, LoopText, Pointer, State

# bytes of the text of a kernel: a call takes as long as a few instructions
MOST_INLINED = 1 << 13


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
        self.held = test, body  # their code, constants and arenas
        try:
            self._build(test, body, cache, MOST_INLINED)
        except jit.CompileError:  # of all kernels in one function; each by itself is compiled
            self._build(test, body, cache, 0)

    def _build(self, test: Program, body: Program, cache: Cache | None, most: int) -> None:
        """Compile the function; `most`: bytes of the text of a kernel that becomes part of it."""
        self.most = most
        self.types = [(v.shape, v.dtype) for v in body.inputs]
        self.kept = {i for i, v in enumerate(body.results) if v.root is body.inputs[i]}
        self.passed = self.kept - body.updated
        self.cells = {i for i, v in enumerate(body.inputs) if _is_element(v)}
        sizes = [v.bytes if i in self.cells else 0 for i, v in enumerate(body.inputs)]
        self.text = LoopText(sizes, self.kept)
        flag = self._steps(test, {})[test.results[0].root]
        self.text.test(flag)
        # what of a state is written where the next iteration reads it
        written: dict[Value, State] = {}
        for slot, value in enumerate(body.results):
            if slot not in self.kept and value.root.source == "output":
                written.setdefault(value.root, State(slot, is_next=True))
        places = self._steps(body, written)
        for slot, value in enumerate(body.results):
            if slot not in self.kept and written.get(value.root) != State(slot, is_next=True):
                self.text.copy(State(slot, is_next=True), places[value.root], value.bytes)
        text, name = self.text.module()
        self.iterations = jit.build(text, [name], cache, optimized=True)[name]
        self.table = jit.table([0, *self.text.pointers])

    def _steps(self, program: Program, written: dict[Value, State]) -> dict[Value, Pointer]:
        """Put the kernels of a block into the text; the place of each value of the block."""
        steps = native_kernels(program) or []
        places: dict[Value, Pointer] = {v: State(i) for i, v in enumerate(program.inputs)}
        places.update(written)
        made = {root for step, _ in steps for v in step.outs if (root := v.root) not in places}
        cells: dict[tuple[int, int], Cell] = {}
        # a place of the arena is that of one element, then perhaps that of another
        shown = {address(v.array) if v.array is not None else id(v) for v in made if _is_element(v)}

        def place(value: Value) -> Pointer:
            root = value.root
            if root in places:
                return places[root]
            at = address(root.array) if root.array is not None else id(root)
            if _is_element(root) and at in shown:
                key = at, root.bytes
                if key not in cells:
                    cells[key] = self.text.cell(root.bytes)
                return cells[key]
            assert root.array is not None, f"{root.what} has no place"
            return self.text.static(at)

        for step, kernel in steps:
            operands = [place(v) for v in (*step.args, *step.outs)]
            is_small = 0 < len(kernel.text) <= self.most
            self.text.call(kernel.text if is_small else kernel.address, operands)
        places.update((v.root, place(v)) for v in program.results)
        return places

    def run(self, args: Sequence[np.ndarray], _: int) -> list[np.ndarray]:
        """The state after the last iteration. Results may be operands that none changed."""
        state = [a if slot in self.passed else a.copy() for slot, a in enumerate(args)]
        other = [
            state[slot] if slot in self.kept | self.cells else np.empty(shape, dtype)
            for slot, (shape, dtype) in enumerate(self.types)
        ]
        self.text.fill(self.table, [address(a) for a in state], [address(a) for a in other])
        self.iterations.raw(ctypes.addressof(self.table))
        return other if self.table[0] else state


def _is_element(value: Value) -> bool:
    """Whether a value fits a register."""
    return math.prod(value.shape) == 1 and value.bytes <= ctypes.sizeof(ctypes.c_int64)
