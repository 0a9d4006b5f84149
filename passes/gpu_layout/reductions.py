"""Reductions of tiles: in registers, across lanes, across warps.

Lanes exchange values by butterfly shuffles, so that every lane has the result. Warps exchange them
through shared memory, where each thread reads the partial results of all warps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from stack.ir.algebra import COMBINE
from stack.ir.node import Node
from stack.passes.gpu_layout.builder import ThreadBuilder
from stack.passes.gpu_layout.share import Digit, Share, ThreadValue
from stack.passes.gpu_layout.shared_memory import SharedMemory


@dataclass(frozen=True)
class Reductions:
    """Builds reductions."""

    tiles: ThreadBuilder
    shared: SharedMemory

    def reduce(self, node: Node, value: ThreadValue) -> ThreadValue:
        """A reduction over some axes of a tile; all threads have the results of their elements."""
        kind, axes = str(node.attrs["kind"]), [int(a) for a in node.attrs["axes"]]
        found = self.in_registers(value, kind, axes)
        digits = [d for a in axes for d in value.layout[a].digits]
        for digit in digits:
            if digit.of_lanes:
                found = self.across_lanes(found, kind, digit)
        warps = [d for d in digits if d.of_warps]
        return self.in_registers(self.of_warps(found, warps), kind, [0]) if warps else found

    def in_registers(self, value: ThreadValue, kind: str, axes: Sequence[int]) -> ThreadValue:
        """Reduces, within each thread, the elements that it has along some axes."""
        over = tuple(2 + a for a in axes)
        rest = tuple(s for i, s in enumerate(value.layout) if i not in axes)
        return ThreadValue(self.tiles.b.reduce(value.node, kind=kind, axes=over), rest)

    def across_lanes(self, value: ThreadValue, kind: str, digit: Digit) -> ThreadValue:
        """Reduces over the lanes of a warp whose numbers differ only in the bits `digit`; each of
        these lanes gets the result.
        """
        step = digit.stride * digit.count // 2
        while step >= digit.stride:
            other = self.tiles.b.shuffle(value.node, kind="xor", by=step)
            value = self.tiles.apply(COMBINE[kind], value, ThreadValue(other, value.layout))
            step //= 2
        return value

    def of_warps(self, value: ThreadValue, digits: Sequence[Digit]) -> ThreadValue:
        """Exchanges a value through shared memory: each thread gets the values of all warps whose
        numbers differ only in the bits `digits`, as a new first axis in registers.
        """
        number = self.tiles.sum(self.tiles.terms(Share(tuple(digits)).weighted))
        count = prod(d.count for d in digits)
        sizes = [s.size for s in value.layout]
        memory = self.shared.alloc(value.dtype, count, *sizes, inside=[value.node])
        number = self.tiles.broadcast(number, (), value.layout)
        index = [number, *self.tiles.indices(value.layout)]
        memory = self.shared.write(memory, value, index)
        layout = (Share((Digit(count),)), *value.layout)
        return self.shared.read(memory, self.tiles.indices(layout), layout)
