"""Compiles a loop whose steps are all our kernels to one native function.

Small kernels are inlined into the function, where LLVM keeps carried single elements in registers.
Larger ones are called. An array that each iteration computes anew is double buffered: the iteration
writes one buffer and reads the other, and the next one swaps them. Values that are updated in
place, or only passed on, have a single buffer.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence

import numpy as np

from stack.run.cache import Cache

from ..runtime.program import BlockProgram
from ..runtime.steps import KernelStep, RuntimeStep
from ..runtime.values import RuntimeValue
from . import jit
from .address import address
from .loop_text import Cell, LoopText, Pointer, State

# bytes of a kernel's text up to which it is inlined: a call takes as long as a few instructions
MOST_INLINED = 1 << 13


def native_kernels(program: BlockProgram) -> list[tuple[RuntimeStep, jit.NativeKernel]] | None:
    """The steps of a program with their code; None if any step is not one of our kernels."""
    found: list[tuple[RuntimeStep, jit.NativeKernel]] = []
    for step in program.steps:
        if not isinstance(step, KernelStep) or not isinstance(step.kernel, jit.NativeKernel):
            return None
        found.append((step, step.kernel))
    return found


class Loop:
    """A loop whose steps are all kernels, as a native function."""

    def __init__(self, test: BlockProgram, body: BlockProgram, cache: Cache | None) -> None:
        self.held = test, body  # keeps their code, constants and arenas alive
        try:
            self._build(test, body, cache, MOST_INLINED)
        except jit.CompileError:  # with all kernels in one function; each alone compiles
            self._build(test, body, cache, 0)

    def _build(
        self, test: BlockProgram, body: BlockProgram, cache: Cache | None, most: int
    ) -> None:
        """Compile the function; kernels with at most `most` bytes of text are inlined."""
        self.most = most
        self.types = [(v.shape, v.dtype) for v in body.inputs]
        self.kept = {i for i, v in enumerate(body.results) if v.root is body.inputs[i]}
        self.passed = self.kept - body.updated
        self.cells = {i for i, v in enumerate(body.inputs) if _is_element(v)}
        sizes = [v.bytes if i in self.cells else 0 for i, v in enumerate(body.inputs)]
        self.text = LoopText(sizes, self.kept)
        flag = self._steps(test, {})[test.results[0].root]
        self.text.test(flag)
        # parts of the next state that a kernel writes directly where the next iteration reads them
        written: dict[RuntimeValue, State] = {}
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

    def _steps(
        self, program: BlockProgram, written: dict[RuntimeValue, State]
    ) -> dict[RuntimeValue, Pointer]:
        """Add the kernels of a block to the text; returns the memory of each value of the block."""
        steps = native_kernels(program) or []
        places: dict[RuntimeValue, Pointer] = {v: State(i) for i, v in enumerate(program.inputs)}
        places.update(written)
        made = {root for step, _ in steps for v in step.outs if (root := v.root) not in places}
        cells: dict[tuple[int, int], Cell] = {}
        # an offset of the arena may be reused for another single element
        shown = {address(v.array) if v.array is not None else id(v) for v in made if _is_element(v)}

        def place(value: RuntimeValue) -> Pointer:
            root = value.root
            if root in places:
                return places[root]
            at = address(root.array) if root.array is not None else id(root)
            if _is_element(root) and at in shown:
                key = at, root.bytes
                if key not in cells:
                    cells[key] = self.text.cell(root.bytes)
                return cells[key]
            assert root.array is not None, f"{root.what} has no memory"
            return self.text.static(at)

        for step, kernel in steps:
            operands = [place(v) for v in (*step.args, *step.outs)]
            is_small = 0 < len(kernel.text) <= self.most
            self.text.call(kernel.text if is_small else kernel.address, operands)
        places.update((v.root, place(v)) for v in program.results)
        return places

    def __call__(self, args: Sequence[np.ndarray], _: int) -> list[np.ndarray]:
        """Returns the state after the last iteration. A result may be an operand left unchanged."""
        state = [a if slot in self.passed else a.copy() for slot, a in enumerate(args)]
        other = [
            state[slot] if slot in self.kept | self.cells else np.empty(shape, dtype)
            for slot, (shape, dtype) in enumerate(self.types)
        ]
        self.text.fill(self.table, [address(a) for a in state], [address(a) for a in other])
        self.iterations.raw(ctypes.addressof(self.table))
        return other if self.table[0] else state


def _is_element(value: RuntimeValue) -> bool:
    """True if a value fits in a register."""
    return math.prod(value.shape) == 1 and value.bytes <= ctypes.sizeof(ctypes.c_int64)
