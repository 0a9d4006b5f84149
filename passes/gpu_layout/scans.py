"""Scans (running reductions) of tiles along an axis, digit by digit of its index, lowest first.

For each digit, elements that differ only in the digits so far form a group. The scan of a group
of groups adds to each the total of the groups before it. Lanes exchange totals by shuffles of
doubling distance (P. Kogge, H. Stone, 1973), warps through shared memory.
"""

from __future__ import annotations

from stack.ir.algebra import COMBINE
from stack.ir.builder import constant
from stack.ir.node import Node
from stack.ir.space import identity
from stack.passes.gpu_layout.builder import ThreadBuilder
from stack.passes.gpu_layout.reductions import Reductions
from stack.passes.gpu_layout.share import Digit, Layout, Share, ThreadValue


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
        """Returns for each thread the value of the thread whose digit is smaller by `step`; the
        identity of the scan if there is none.
        """
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
