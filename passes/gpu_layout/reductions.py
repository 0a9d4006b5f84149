"""Reductions of tiles: in registers, across lanes, across warps.

Lanes exchange values by butterfly shuffles, so that every lane has the result. Warps exchange them
through shared memory, where each thread reads the partial results of all warps.

A scan (running reduction) goes over the digits of an index, lowest first. For each digit, elements
that differ only in the digits so far form a group. The scan of a group of groups adds to each the
total of the groups before it. Lanes exchange totals by shuffles of doubling distance (P. Kogge, H.
Stone, 1973), warps through shared memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from stack.ir.algebra import COMBINE
from stack.ir.builder import constant
from stack.ir.node import Node
from stack.ir.space import identity
from stack.passes.gpu_layout.builder import ThreadBuilder
from stack.passes.gpu_layout.share import Digit, Layout, Share, ThreadValue
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
        """Reduces over lanes whose numbers differ only in a digit; each gets the result."""
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


class Scan:
    """One scan of a kernel."""

    def __init__(self, node: Node, tiles: ThreadBuilder, reductions: Reductions) -> None:
        self.tiles = tiles
        self.reductions = reductions
        self.kind, self.reverse = str(node.attrs["kind"]), bool(node.attrs["reverse"])
        self.axis = int(node.attrs["axis"])

    def build(self, value: ThreadValue) -> ThreadValue:
        """The scan of a tile, in the layout of the tile."""
        share = value.layout[self.axis]
        # the registers of the axis as one axis for each digit, highest first, after all others
        order = [*(i for i in range(len(value.layout)) if i != self.axis), self.axis]
        value = self.tiles.transpose(value, order)
        rest = value.layout[:-1]
        digits = [Share((d,)) for d in reversed(share.digits) if not d.stride]
        made = total = self._reshape(value, (*rest, *digits))
        for i, digit in enumerate(share.digits):
            if not digit.stride and not i:
                last = made.node.tensor.rank - 1
                node = self.tiles.b.scan(made.node, kind=self.kind, axis=last, reverse=self.reverse)
                made = ThreadValue(node, made.layout)
                total = self._total(total)
            else:
                before, total = self._before(total, digit)
                before = self.tiles.broadcast(before, range(len(before.layout)), made.layout)
                made = self._combine(before, made)
        made = self._reshape(made, (*rest, share))
        return self.tiles.transpose(made, sorted(range(len(order)), key=lambda i: order[i]))

    def _reshape(self, value: ThreadValue, layout: Layout) -> ThreadValue:
        if self.tiles.type_of(value.dtype, layout) == value.node.type:
            return ThreadValue(value.node, layout)
        return self.tiles.reshape(value, layout)

    def _combine(self, first: ThreadValue, second: ThreadValue) -> ThreadValue:
        return self.tiles.apply(COMBINE[self.kind], first, second)

    def _total(self, value: ThreadValue) -> ThreadValue:
        """Reduces a tile along its last axis, within the registers of each thread."""
        return self.reductions.in_registers(value, self.kind, [len(value.layout) - 1])

    def _before(self, total: ThreadValue, digit: Digit) -> tuple[ThreadValue, ThreadValue]:
        """Scans over one digit of the index.

        From the total of each group, returns the total of the groups before it, and the total of
        all groups that differ from it in this digit only.
        """
        if digit.of_lanes:
            return self._before_lanes(total, digit)
        if digit.of_warps:
            everyone = self.reductions.of_warps(total, [digit])
            own = self.tiles.broadcast(self.tiles.digit(digit), (), everyone.layout)
            return self._sum_before(everyone, own, 0)
        # a digit of registers: each compares its own index with those of all others
        *rest, last = total.layout
        layout = (*rest, last, last)
        at = len(rest)
        everyone = self.tiles.broadcast(total, (*range(at), at + 1), layout)
        before, _ = self._sum_before(everyone, self.tiles.index(layout, at), at + 1)
        return before, self._total(total)

    def _sum_before(
        self, everyone: ThreadValue, own: ThreadValue, axis: int
    ) -> tuple[ThreadValue, ThreadValue]:
        """Reduces a value along a register axis: over the indices before `own`, and over all
        indices. Returns both results.

        In a reverse scan, the indices before `own` are the larger ones.
        """
        index = self.tiles.index(everyone.layout, axis)
        test = self.tiles.apply("gt" if self.reverse else "lt", index, own)
        before = self._select(test, everyone)
        found = [self.reductions.in_registers(v, self.kind, [axis]) for v in (before, everyone)]
        return found[0], found[1]

    def _before_lanes(self, total: ThreadValue, digit: Digit) -> tuple[ThreadValue, ThreadValue]:
        number = self.tiles.digit(digit)
        scanned, step = total, 1
        while step < digit.count:
            scanned = self._combine(self._shifted(scanned, number, digit, step), scanned)
            step *= 2
        before = self._shifted(scanned, number, digit, 1)
        return before, self.reductions.across_lanes(total, self.kind, digit)

    def _shifted(
        self, value: ThreadValue, number: ThreadValue, digit: Digit, step: int
    ) -> ThreadValue:
        """Returns the value of the thread whose digit is smaller by `step`, or the identity."""
        side = "down" if self.reverse else "up"
        other = self.tiles.b.shuffle(value.node, kind=side, by=step * digit.stride)
        if self.reverse:
            test = self.tiles.apply("lt", number, digit.count - step)
        else:
            test = self.tiles.apply("ge", number, step)
        test = self.tiles.broadcast(test, (), value.layout)
        return self._select(test, ThreadValue(other, value.layout))

    def _select(self, test: ThreadValue, value: ThreadValue) -> ThreadValue:
        """Returns `value` in threads where `test` is true, and the scan's identity in others."""
        nothing = constant(identity(self.kind, value.dtype), value.dtype)
        return ThreadValue(self.tiles.b.select(test.node, value.node, nothing), value.layout)
