"""Scheduling policy of matmuls on a CPU: the tile of accumulators that fits in registers."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from stack.ir.node import Node
from stack.ir.traits import is_contraction
from stack.passes.cpu_products.gemm import WIDTHS, is_kept, is_row_of_sums, tile_of
from stack.passes.cpu_products.mma import mma_of
from stack.passes.tiling.contraction import Roles, roles_of
from stack.passes.tiling.frame import wide
from stack.schedule import Axis, Domain, Need, Policy, Prediction, Rules, Schedule, Split
from stack.target import Cpu


class GemmPolicy(Policy):
    """Schedules matmuls in tiles of m rows (unrolled) and n columns (vectorized)."""

    def __init__(self, dot: Node, cpu: Cpu, is_kept: bool = False) -> None:
        self.dot, self.cpu, self.dtype = dot, cpu, wide(dot.dtype)
        self.is_kept = is_kept
        self.roles = roles_of(dot, by_lane=True)
        self.domain = product_domain(self.roles)
        self.rows, self.columns = product_extents(self.roles)
        self.rules = Rules(
            {"reduction": ()},
            axes={"b": (), "m": ("unroll",), "n": ("vector",)},
            free=("m",),
            most={"m": self.rows, "n": self.columns},
            options=(),
        )

    def candidates(self) -> list[tuple[Schedule, Prediction | None]]:
        vector = self.cpu.vector_bytes // self.dtype.bytes
        columns = [c * vector for c in WIDTHS if c * vector <= self.columns]
        own = self.complete(Schedule())
        others = [self.complete(Schedule((Split("n", c, "vector"),))) for c in columns]
        return [(s, None) for s in dict.fromkeys((own, *others))]

    def complete(self, given: Schedule) -> Schedule:
        given_tile = given.block("n"), given.block("m")
        rows, lanes = tile_of(self.dot, self.cpu, *given_tile, self.is_kept)
        own = (Split("m", rows, "unroll"), Split("n", lanes, "vector"))
        return given.filled(Schedule(own if self.domain.axis("m") else own[1:]))

    def needs(self, schedule: Schedule) -> Sequence[Need]:
        mma = mma_of(self.dot, self.cpu)
        tile = schedule.block("m", 1), schedule.block("n")
        if mma and mma.rows > 1 and mma.divides(*tile, mma.depth):
            return []  # it has registers of its own for the sums
        vectors = -(-schedule.block("n") * self.dtype.bytes // self.cpu.vector_bytes)
        sums = schedule.block("m", 1) * vectors
        return [Need("vector registers for sums", sums, self.cpu.registers)]


def product_domain(roles: Roles) -> Domain:
    """Returns the axes of a matmul: b (batches and panels), m (rows), n (columns), k (depth).

    Leaves out b and m if their extent is 1.
    """
    sizes = roles.sizes
    many = prod(sizes[n] for n in (*roles.batch, *roles.panels, *roles.outer))
    rows, columns = product_extents(roles)
    axes = (
        Axis("b", many, "parallel"),
        Axis("m", rows, "parallel"),
        Axis("n", columns, "parallel"),
        Axis("k", prod(sizes[n] for n in roles.contracted), "reduction"),
    )
    return Domain(tuple(a for a in axes if a.extent > 1 or a.name in "nk"))


def product_extents(roles: Roles) -> tuple[int, int]:
    """Returns the numbers of rows and columns of a matmul."""
    return roles.sizes[roles.row] if roles.row else 1, roles.sizes[roles.lane]


def gemm_policy(group: Node, cpu: Cpu) -> GemmPolicy | None:
    """Returns the scheduling policy of a fusion group with one matmul; None if the group has no or
    several matmuls, an empty one, or a vector times a matrix that is lowered as a reduction. Raises
    CannotTile if the matmul has no tile.
    """
    dots = [n for n in group.blocks[0].nodes if is_contraction(n)]
    if len(dots) != 1 or 0 in dots[0].shape or is_row_of_sums(dots[0]):
        return None
    return GemmPolicy(dots[0], cpu, is_kept(group, dots[0]))
