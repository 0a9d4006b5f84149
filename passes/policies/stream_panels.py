"""Scheduling policy of streams on a CPU: rows are vectorized, and keys are split into panels."""

from __future__ import annotations

from math import prod

from stack.ir.contraction import product_types
from stack.ir.node import Node
from stack.ir.stream_op import streamed_extent
from stack.passes.cpu_products.gemm import WIDTHS, column_cost
from stack.passes.positions.stream_shape import stream_axes
from stack.passes.tiling.frame import CannotTile, static
from stack.schedule import Axis, Domain, Policy, Rules, Schedule, Split
from stack.target import Cpu


class PanelPolicy(Policy):
    """Schedules programs of m rows (vectorized) that loop over panels of k keys.

    Their sums stay in the L2 cache. Raises CannotTile for a stream without rows, or if the sums of
    one row do not fit in that cache.
    """

    def __init__(self, stream: Node, cpu: Cpu) -> None:
        axes = stream_axes(stream)
        if not axes.row:
            raise CannotTile("it has no axis of rows, which are the lanes of its vectors")
        self.cpu, self.rows = cpu, axes.sizes[axes.row]
        sums = 4 * len(axes.wide) * axes.columns
        self.most = min(self.rows, cpu.cache_bytes // max(sums, 1))
        if not self.most:
            raise CannotTile(
                f"{axes.columns} columns of sums are more than {cpu.cache_bytes} bytes"
            )
        self.extent = static(streamed_extent(stream))
        self.has_tiles = any(m.rows > 1 for s in axes.wide for m in cpu.mmas(product_types(s)))
        many = (size for name, size in axes.sizes.items() if name not in (axes.row, axes.column))
        self.domain = Domain(
            (
                Axis("b", prod(many), "parallel"),
                Axis("m", self.rows, "parallel"),
                Axis("e", axes.columns, "parallel"),
                Axis("k", self.extent, "stream"),
            )
        )
        self.rules = Rules(
            {"parallel": (), "stream": ("serial",)},
            axes={"m": ("vector",)},
            free=("k",),
            most={"m": min(self.rows, max(WIDTHS) * cpu.lanes), "k": self.extent},
            options=(),
        )

    def complete(self, given: Schedule) -> Schedule:
        part = 1 << (self.most.bit_length() - 1)  # rows, if they are fewer than lanes
        fits = [v for v in WIDTHS if v * self.cpu.lanes <= self.most]
        vectors = min(fits, key=lambda v: column_cost(v, self.cpu), default=0)
        rows = vectors * self.cpu.lanes or part
        tuning = self.cpu.streams
        best = tuning.tiled_panel if self.has_tiles else tuning.panel
        keys = min(_panel(self.extent, best), self.extent)
        return given.filled(Schedule((Split("m", rows, "vector"), Split("k", keys, "serial"))))


def _panel(extent: int, best: int) -> int:
    """Picks the keys of a panel: the divisor of all keys closest to `best`, if one is close."""
    near = [s for s in range(best // 2, best + best // 2 + 1) if extent % s == 0]
    return min(near, key=lambda s: abs(s - best), default=best)
