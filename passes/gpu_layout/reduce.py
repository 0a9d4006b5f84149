"""Reductions and scans of tiles: in registers, from lane to lane, from warp to warp.

Lanes exchange values by shuffles: a butterfly for reductions, so that every lane has the result,
and doubling steps for scans (P. Kogge, H. Stone, 1973). Warps go through shared memory, where each
thread reads what all warps found.
"""

from __future__ import annotations

from collections.abc import Sequence

from stack.ir.builder import constant
from stack.ir.node import Node
from stack.ir.space import identity
from stack.passes.gpu_layout.memory import Memory
from stack.passes.gpu_layout.share import Digit, Layout, NamedTile, Share
from stack.passes.tiling.frame import COMBINE


class Reduce(Memory):
    """Reductions and scans."""

    def reduce(self, node: Node, value: NamedTile) -> NamedTile:
        """A reduction over some axes of a tile; each thread has the results at its places."""
        kind, axes = str(node.attrs["kind"]), [int(a) for a in node.attrs["axes"]]
        over = tuple(2 + a for a in axes)
        rest = tuple(s for i, s in enumerate(value.layout) if i not in axes)
        found = NamedTile(self.b.reduce(value.node, kind=kind, axes=over), rest)
        digits = [d for a in axes for d in value.layout[a].digits]
        for digit in digits:
            if digit.of_lanes:
                found = self._over_lanes(found, kind, digit)
        warps = [d for d in digits if d.of_warps]
        return self._over_warps(found, kind, warps) if warps else found

    def _over_lanes(self, value: NamedTile, kind: str, digit: Digit) -> NamedTile:
        """All lanes that differ in a digit get what they come to together."""
        step = digit.stride * digit.count // 2
        while step >= digit.stride:
            other = NamedTile(self.b.shuffle(value.node, kind="xor", by=step), value.layout)
            value = self.apply(COMBINE[kind], value, other)
            step //= 2
        return value

    def _over_warps(self, value: NamedTile, kind: str, digits: Sequence[Digit]) -> NamedTile:
        """All warps that differ in some digits get what they come to together."""
        everyone = self._of_warps(value, digits)
        return NamedTile(self.b.reduce(everyone.node, kind=kind, axes=(2,)), value.layout)

    def _of_warps(self, value: NamedTile, digits: Sequence[Digit]) -> NamedTile:
        """In each thread what all warps have that differ in some digits, along a first axis."""
        number: NamedTile | None = None
        count = 1
        for digit in digits:
            part = self.digit(digit)
            part = self.apply("mul", part, count) if count > 1 else part
            number = part if number is None else self.apply("add", number, part)
            count *= digit.count
        assert number is not None
        sizes = [s.size for s in value.layout]
        memory = self.shared(value.dtype, count, *sizes, inside=[value.node])
        index = [self.broadcast(number, (), value.layout), *self._all_places(value.layout)]
        memory = self.b.op("store", [memory, value.node, *(i.node for i in index)], {})
        layout = (Share((Digit(count),)), *value.layout)
        places = [self.along(self.places(s), i, layout).node for i, s in enumerate(layout)]
        type_ = self.type_of(value.dtype, layout)
        return NamedTile(self.b.op("load", [memory, *places], {}, hint=type_), layout)

    def _all_places(self, layout: Layout) -> list[NamedTile]:
        return [self.along(self.places(s), i, layout) for i, s in enumerate(layout)]

    # ---- scans

    def scan(self, node: Node, value: NamedTile) -> NamedTile:
        """A running reduction along one axis, digit by digit of the places on it, lowest first.

        Of each group of places that differ in the digits so far, `total` is what all come to.
        """
        self.kind, self.reverse = str(node.attrs["kind"]), bool(node.attrs["reverse"])
        axis, share = int(node.attrs["axis"]), value.layout[int(node.attrs["axis"])]
        # the registers of the axis as one axis for each digit, highest first, after all others
        order = [*(i for i in range(len(value.layout)) if i != axis), axis]
        value = self.turned(value, order)
        rest = value.layout[:-1]
        counts = [Share((d,)) for d in reversed(share.digits) if not d.stride]
        made = self._reshaped(value, (*rest, *counts))
        total = made
        is_first = True
        for digit in share.digits:
            if not digit.stride and is_first:
                last = made.node.tensor.rank - 1
                made = NamedTile(
                    self.b.scan(made.node, kind=self.kind, axis=last, reverse=self.reverse),
                    made.layout,
                )
                total = self._total(total)
            else:
                before, total = self._before(total, digit)
                before = self.broadcast(before, range(len(before.layout)), made.layout)
                made = self.apply(COMBINE[self.kind], before, made)
            is_first = False
        made = self._reshaped(made, (*rest, share))
        return self.turned(made, sorted(range(len(order)), key=lambda i: order[i]))

    def _reshaped(self, value: NamedTile, layout: Layout) -> NamedTile:
        type_ = self.type_of(value.dtype, layout)
        if type_ == value.node.type:
            return NamedTile(value.node, layout)
        return NamedTile(self.b.reshape(value.node, type=type_), layout)

    def _total(self, value: NamedTile) -> NamedTile:
        """The total along the last axis, which is one of registers."""
        last = value.node.tensor.rank - 1
        return NamedTile(self.b.reduce(value.node, kind=self.kind, axes=(last,)), value.layout[:-1])

    def _before(self, total: NamedTile, digit: Digit) -> tuple[NamedTile, NamedTile]:
        """What the groups before each come to, and the total of all that differ in a digit."""
        if digit.of_lanes:
            return self._before_lanes(total, digit)
        if digit.of_warps:
            everyone = self._of_warps(total, [digit])
            own = self.broadcast(self.digit(digit), (), everyone.layout)
            number = self.along(self.places(everyone.layout[0]), 0, everyone.layout)
            return self._summed_before(everyone, number, own, 0)
        # a digit of registers: each place of it against all others
        rest, last = total.layout[:-1], total.layout[-1]
        layout = (*rest, last, last)
        at = len(rest)
        everyone = self.broadcast(total, (*range(at), at + 1), layout)
        own = self.along(self.places(last), at, layout)
        number = self.along(self.places(last), at + 1, layout)
        before, _ = self._summed_before(everyone, number, own, at + 1)
        return before, self._total(total)

    def _summed_before(
        self, everyone: NamedTile, number: NamedTile, own: NamedTile, axis: int
    ) -> tuple[NamedTile, NamedTile]:
        """Along an axis of registers: what has a number before one's own, and all."""
        test = self.apply("gt" if self.reverse else "lt", number, own)
        nothing = constant(identity(self.kind, everyone.dtype), everyone.dtype)
        seen = self.b.select(test.node, everyone.node, nothing)
        rest = tuple(s for i, s in enumerate(everyone.layout) if i != axis)
        found = [
            NamedTile(self.b.reduce(n, kind=self.kind, axes=(2 + axis,)), rest)
            for n in (seen, everyone.node)
        ]
        return found[0], found[1]

    def _before_lanes(self, total: NamedTile, digit: Digit) -> tuple[NamedTile, NamedTile]:
        number = self.digit(digit)
        up, step = total, 1
        while step < digit.count:
            up = self.apply(COMBINE[self.kind], self._from_before(up, number, digit, step), up)
            step *= 2
        before = self._from_before(up, number, digit, 1)
        return before, self._over_lanes(total, self.kind, digit)

    def _from_before(
        self, value: NamedTile, number: NamedTile, digit: Digit, step: int
    ) -> NamedTile:
        """The value so many steps of a digit before; the identity where there is none."""
        side = "down" if self.reverse else "up"
        other = self.b.shuffle(value.node, kind=side, by=step * digit.stride)
        if self.reverse:
            test = self.apply("lt", number, digit.count - step)
        else:
            test = self.apply("ge", number, step)
        test = self.broadcast(test, (), value.layout)
        nothing = constant(identity(self.kind, value.dtype), value.dtype)
        return NamedTile(self.b.select(test.node, other, nothing), value.layout)
