"""Streams without products on a CPU: rows in one pass over memory, in vectors along a row.

    softmax of rows of 100,000 numbers:
    rewrite powers; split r 1024 tail=peel; block r.1; split r.1 64 tail=peel; vectorize r.1.1;
    rfactor r.1.0; bind i cores

A part of a row stays in the first-level cache while each state is computed for it. Lanes keep
partial sums of the part.
"""

from __future__ import annotations

from stack.passes.policies.step_lowering import LoweredKernel, StepLowering
from stack.passes.steps.loops import axes, nests
from stack.passes.steps.primitives import Bind, BlockStates, Rewrite, Rfactor, Split, Vectorize
from stack.passes.tiling.frame import CannotTile
from stack.target import Cpu

KEY = "r"  # the streamed axis of the nest


class CpuRowStreams(StepLowering[Cpu]):
    """Lowers a stream without products."""

    def take(self, made: LoweredKernel) -> None:
        """Applies the loop transformations of the policy to the kernel. Raises CannotTile if the
        stream has no such kernel.
        """
        if KEY not in axes(made.kernel):
            raise CannotTile("its streamed axis has one element")
        made.take(Rewrite("powers").because("exp2 takes fewer instructions than exp"))
        (kept, *_) = nests(made.kernel) or [[]]
        key = self._cut(made, KEY, self.target.rows.part, "a part stays in the first-level cache")
        made.may(BlockStates(key).because("states are rescaled once in a part"))
        lane = self._cut(made, key, self.target.chunk, f"a vector has {self.target.chunk} lanes")
        made.take(Vectorize(lane))
        for axis in reversed(list(axes(made.kernel))):
            if axis.startswith(KEY):
                made.may(Rfactor(axis).because("lanes keep partial sums"))
        for axis in kept:
            if axis != KEY:
                made.may(Bind(axis, "cores").because("threads share rows"))

    def _cut(self, made: LoweredKernel, axis: str, size: int, why: str) -> str:
        """Splits an axis into blocks of `size` if it is longer than that. Returns the axis inside a
        block, or the axis itself.
        """
        if axes(made.kernel)[axis] <= size:
            return axis
        cut = Split(axis, size, "peel")
        made.take(cut.because(why))
        return cut.inner
