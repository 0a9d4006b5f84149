"""Sums of overlapping windows as MLIR text: shared elements are loaded once.

Elements of the image that several windows cover are loaded and widened once, and multiplied with
each tap that uses them: windows of seven taps share most of their elements with their neighbours.
Taps of a row are unrolled, as many at a time as fit in registers.
"""

from __future__ import annotations

from collections import defaultdict

from stack.ir.node import Node

from .access import Accesses
from .sums import BLOCKS, Sums
from .views import at, step

Uses = dict[int, list[tuple[int, int]]]  # element offset to the (window, tap) pairs that use it


class TapSums(Sums):
    """Sums whose lanes read overlapping windows: elements that these share are loaded once."""

    def __init__(self, p: Accesses, node: Node) -> None:
        super().__init__(p, node)
        self.run = 0  # taps per block, if windows overlap
        self.join_axes()
        shared = [axis for axis in self.axes if self._shares(*axis)] if self.is_by_lane else []
        if shared:
            last = min(shared, key=lambda axis: len(self._uses(*axis)) / axis[1])
            self.axes.remove(last)
            self.axes.append(last)
            self.run = p.cpu.taps(last[1])

    def _shares(self, name: str, extent: int) -> bool:
        if extent >= 2 * BLOCKS[-1]:
            return False  # such long sums are split into blocks
        return len(self._uses(name, extent)) < extent * len(self.offsets)

    def _uses(self, name: str, taps: int) -> Uses:
        found: Uses = defaultdict(list)
        for row, offset in enumerate(self.offsets):
            for tap in range(taps):
                found[offset + tap * self.a_stride[name]].append((row, tap))
        return found

    def sum(self, depth: int, lefts: list[str], right: str, sums: list[str]) -> list[str]:
        if not self.run or depth < len(self.axes) - 1:
            return super().sum(depth, lefts, right, sums)
        p, (name, extent) = self.p, self.axes[-1]
        whole = extent - extent % self.run

        def add(k: str, totals: list[str]) -> list[str]:
            left = step(p, lefts[0], k, self.a_stride[name], self.a.dtype)
            line = step(p, right, k, self.b_stride[name], self.b.dtype)
            return self._add(name, self.run, left, line, totals)

        if whole > self.run:
            first, last, by = (p.constant(f"{n} : i64") for n in (0, whole, self.run))
            sums = self.loop(first, last, by, sums, add)
        else:
            sums = self._add(name, whole, lefts[0], right, sums)
        left = at(p, lefts[0], whole * self.a_stride[name], self.a.dtype)
        line = at(p, right, whole * self.b_stride[name], self.b.dtype)
        return self._add(name, extent - whole, left, line, sums)

    def _add(self, name: str, count: int, left: str, right: str, sums: list[str]) -> list[str]:
        """Adds the products with the first `count` window positions (taps) of an axis to the sums.

        The sums are those of all rows. Loads each vector of the left operand once, for all rows and
        taps that use it.
        """
        p, by, made = self.p, self.b_stride[name], list(sums)
        lines = [at(p, right, tap * by, self.b.dtype) for tap in range(count)]
        taps = [self.b.read(p, line, self.lanes) for line in lines]
        for offset, uses in sorted(self._uses(name, count).items()):
            place = self.a.read(p, at(p, left, offset, self.a.dtype), self.lanes)
            for row, tap in uses:
                made[row] = self.multiply_add(place, taps[tap], made[row])
        return made
