"""Schedules of products that blocks of threads stage in shared memory."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from stack.ir.node import Node
from stack.ir.traits import is_contraction
from stack.ir.types import DType
from stack.ir.warp_ops import LINE_BYTES, MATRIX, WARP
from stack.passes.exact_tiling.gemm_policy import product_domain, product_extents
from stack.passes.gpu_loops.tensor import DEPTH, PAD, warp_grids
from stack.passes.gpu_loops.threads import ACROSS
from stack.passes.tiling.contraction import roles_of
from stack.schedule import (
    Axis,
    Need,
    Policy,
    Prediction,
    Rules,
    Schedule,
    Split,
    first_schedule,
)
from stack.target import Gpu

STAGES = 3  # blocks of depth in shared memory: one is multiplied, two are on their way
EDGE_COST = 48  # of a row or column of a tile, in products at one depth
BLOCK_COST = 2000  # of a tile
# of tiles by bits of an element; tensor cores multiply those of 16
SIDES = {16: (16, 32, 64, 128), 32: (32, 64, 128), 64: (32, 64)}
# what is in shared memory at a time where threads compute single sums, or groups of them
DEPTHS = {"shared": WARP, "register": ACROSS}


class TilePolicy(Policy):
    """Tiles of m rows and n columns for a block of threads, which walks along k."""

    def __init__(self, dot: Node, gpu: Gpu) -> None:
        self.roles, self.gpu, self.dtype = roles_of(dot), gpu, dot.args[0].dtype
        self.domain = product_domain(self.roles)
        self.rows, self.columns = product_extents(self.roles)
        self.rules = Rules(
            {"parallel": ("grid", "lane", "unroll"), "reduction": ("serial",)},
            axes={"b": ()},
            free=("m", "n"),
            options=("warps", "stages") if self.dtype.bits == 16 else ("stages",),
            ordered=True,
        )

    def candidates(self) -> list[tuple[Schedule, Prediction | None]]:
        many = self.domain.axis("b") or Axis("b", 1, "parallel")
        tiles = ranked_tiles(self.rows, self.columns, many.extent, self.dtype, self.gpu)
        found = dict.fromkeys(self._tile(down, across) for down, across in tiles)
        return [(schedule, None) for schedule in found]

    def complete(self, given: Schedule) -> Schedule:
        usual = self.candidates()[0][0]
        if form_of(given):  # nothing is staged
            usual = Schedule(tuple(s for s in usual.splits if s.axis != "k"))
        return given.filled(usual)

    def why_illegal(self, schedule: Schedule) -> str:
        why = super().why_illegal(schedule) or self._why_not_so(schedule, form_of(schedule))
        if why or not schedule.warps:
            return why
        rows, columns = (-(-schedule.block(a, 1) // MATRIX) * MATRIX for a in "mn")
        if any(down * across == schedule.warps for down, across in warp_grids(rows, columns)):
            return ""
        return (
            f"warps={schedule.warps}: no grid of as many divides {rows} x {columns} sums into"
            f" matrices of {MATRIX} x {MATRIX}"
        )

    def _why_not_so(self, schedule: Schedule, form: str) -> str:
        """What stands against blocks that are not those of programs."""
        if form and (schedule.warps or schedule.stages):
            return "warps and stages are of products that are staged, not of single threads"
        depth = DEPTHS.get(form, 0 if form else self.depth)
        for split in schedule.splits:
            own = {"lane": 1, "serial": depth}.get(split.binding)
            if split.binding == "unroll":
                own = max(1, schedule.block(split.axis) // ACROSS)
            if own is not None and split.block != own:
                return (
                    f"axis {split.axis}: {split.block}@{split.binding}, and this kernel has {own}"
                )
        return ""

    @property
    def depth(self) -> int:
        """Elements of depth that are staged at a time."""
        return DEPTH if self.dtype.bits == 16 else LINE_BYTES // self.dtype.bytes

    def needs(self, schedule: Schedule) -> Sequence[Need]:
        down, across = schedule.block("m", 1), schedule.block("n")
        line = (DEPTH * 2 if self.dtype.bits == 16 else LINE_BYTES) + PAD * self.dtype.bytes
        shared = schedule.stages * (down + across) * line
        return [
            Need("threads", schedule.warps * WARP, self.gpu.threads),
            Need("bytes of shared memory", shared, self.gpu.shared_bytes),
            Need("registers for sums", down * across, self.gpu.registers // 2),
        ]

    def _tile(self, down: int, across: int) -> Schedule:
        own = (
            Split("m", min(down, self.rows), "grid"),
            Split("n", min(across, self.columns), "grid"),
            Split("k", self.depth, "serial"),
        )
        return Schedule(own if self.domain.axis("m") else own[1:], stages=STAGES)


def form_of(schedule: Schedule) -> str:
    """How threads share a product that they do not stage; "" for one that they do."""
    by = {s.binding: s.axis for s in schedule.splits}
    if "lane" in by:
        return "shared" if schedule.of("k") else "coalesced" if by["lane"] == "n" else "naive"
    return "register" if "unroll" in by else ""


def ranked_tiles(
    rows: int, columns: int, many: int, dtype: DType, gpu: Gpu
) -> list[tuple[int, int]]:
    """Rows and columns of a tile of a product, by waves of blocks times the cost of one."""
    sides = SIDES.get(dtype.bits, SIDES[32])

    def cost(tile: tuple[int, int]) -> int:
        down, across = tile
        blocks = many * -(-rows // down) * -(-columns // across)
        one = prod(tile) + EDGE_COST * (down + across) + BLOCK_COST
        return -(-blocks // gpu.processors) * one

    return sorted(((r, c) for r in sides for c in sides), key=cost)


def tile_policy(group: Node, gpu: Gpu) -> TilePolicy | None:
    """The policy of a group with one product; None for others. Raises CannotTile."""
    if group.op == "stream":
        return None
    dots = [n for n in group.blocks[0].nodes if is_contraction(n)]
    return TilePolicy(dots[0], gpu) if len(dots) == 1 else None


def is_staged(group: Node, gpu: Gpu) -> bool:
    """Whether the threads of a group with one product stage its operands.

    Warpgroups multiply blocks of 16-bit floats where they lie, unless its schedule says how single
    threads share it.
    """
    if tile_policy(group, gpu) is None:
        return False
    (dot,) = (n for n in group.blocks[0].nodes if is_contraction(n))
    named = first_schedule(group)
    by_groups = "wgmma" in gpu.features and dot.args[0].dtype.bits == 16
    return not by_groups or (named is not None and bool(form_of(named)))


class WithForms(Policy):
    """A policy of blocks; a schedule that shares a product out to single threads is staged."""

    def __init__(self, blocks: Policy, staged: Policy) -> None:
        self.blocks, self.staged = blocks, staged
        self.domain, self.rules = blocks.domain, blocks.rules

    def candidates(self) -> list[tuple[Schedule, Prediction | None]]:
        return self.blocks.candidates()

    def complete(self, given: Schedule) -> Schedule:
        return self._policy(given).complete(given)

    def why_illegal(self, schedule: Schedule) -> str:
        return self._policy(schedule).why_illegal(schedule)

    def _policy(self, schedule: Schedule) -> Policy:
        return self.staged if form_of(schedule) else self.blocks
