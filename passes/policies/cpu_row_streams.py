"""Streams without products on a CPU: rows in one pass over memory, in vectors along a row.

    softmax of rows of 100,000 numbers:
    rewrite powers; split r 1024 tail=peel; block r.1; split r.1 64 tail=peel; vectorize r.1.1;
    rfactor r.1.0; bind i cores

A part of a row stays in the first-level cache while each state is computed for it. Lanes keep
partial sums of the part.
"""

from __future__ import annotations

from stack.passes.policies.stepped import Made, Stepped
from stack.passes.steps.all import Bind, Blocked, Rewrite, Rfactor, Split, Vectorize
from stack.passes.steps.loops import axes, nests
from stack.passes.tiling.frame import CannotTile
from stack.target import Cpu

KEY = "r"  # the streamed axis of the nest


class CpuRowStreams(Stepped[Cpu]):
    """Lowers a stream without products."""

    def take(self, made: Made) -> None:
        """Take the steps of the policy. Raises CannotTile."""
        if KEY not in axes(made.kernel):
            raise CannotTile("its streamed axis has one element")
        made.take(Rewrite("powers").because("exp2 takes fewer instructions than exp"))
        (kept, *_) = nests(made.kernel) or [[]]
        key = self._cut(made, KEY, self.target.rows.part, "a part stays in the first-level cache")
        made.may(Blocked(key).because("states are rescaled once in a part"))
        lane = self._cut(made, key, self.target.chunk, f"a vector has {self.target.chunk} lanes")
        made.take(Vectorize(lane))
        for axis in reversed(axes(made.kernel)):
            if axis.startswith(KEY):
                made.may(Rfactor(axis).because("lanes keep partial sums"))
        for axis in kept:
            if axis != KEY:
                made.may(Bind(axis, "cores").because("threads share rows"))

    def _cut(self, made: Made, axis: str, size: int, why: str) -> str:
        """Split an axis if it is longer. Returns the axis inside of a block."""
        if axes(made.kernel)[axis] <= size:
            return axis
        cut = Split(axis, size, "peel")
        made.take(cut.because(why))
        return cut.inner


__all__ = ["CpuRowStreams"]
