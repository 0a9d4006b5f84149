"""Matrix products on a CPU: tiles of accumulators in vector registers, over packed panels.

Threads share panels of columns, and tiles of rows below them. The sums of a tile are one `dot` of
blocks. The epilogue loads them from local memory, one row after another.

    relu of the product of 512 x 512 and 512 x 512 numbers:
    reorder i j; split j 64 tail=overlap; reorder j.1 i; split i 6 tail=overlap; bind j.0 cores;
    bind i.0 cores; vectorize j.1; fission i.1 k; microkernel

Sizes that a tile does not divide need no second kernel: the last tile starts early, and computes
some elements again.
"""

from __future__ import annotations

from stack.ir.node import Node
from stack.ir.traits import contractions, is_loop
from stack.ir.types import F32, F64, I32
from stack.passes.cpu_products.gemm import (
    GemmPolicy,
    check_worth,
    gemm_policy,
    memory_of,
    tile_and_mma,
)
from stack.passes.nest.emit import axis_names, domain
from stack.passes.policies.step_lowering import LoweredKernel, StepLowering, reordered
from stack.passes.steps.loop_products import products_in
from stack.passes.steps.loops import axes, axis_of, loops_along
from stack.passes.steps.primitives import Bind, Fission, Microkernel, Reorder, Split, Vectorize
from stack.passes.tiling.contraction import result_names, roles_of
from stack.passes.tiling.frame import CannotTile, wide
from stack.schedule import Schedule
from stack.target import Cpu


class CpuProducts(StepLowering[Cpu]):
    """Lowers a group with a matrix product."""

    def policy(self) -> GemmPolicy | None:
        """Returns the policy that picks the tile; None without exactly one matmul. Raises
        CannotTile if it has no tile, or if a library computes it faster.
        """
        policy = gemm_policy(self.group, self.target)
        if policy is not None:
            check_worth(policy.dot, self.target)
        return policy

    def take(self, made: LoweredKernel) -> None:
        """Applies the loop transformations of the policy to the kernel. Raises CannotTile if the
        group is not one product of matrices that has a tile.
        """
        dot = _only_dot(self.group)
        policy = gemm_policy(self.group, self.target)
        schedule = policy.of(self.group) if policy is not None else Schedule()
        blocks = schedule.block("n"), schedule.block("m")
        rows, lanes, mma = tile_and_mma(dot, self.target, *blocks)
        names = dict(zip(result_names(dot), axis_names(dot, ()), strict=True))
        roles = roles_of(dot, by_lane=True)
        panels = [names[n] for n in (*roles.batch, *roles.panels)]
        below = [names[n] for n in (*roles.outer, roles.row) if n]
        lane, row = names[roles.lane], names.get(roles.row, "")
        has_panels = axes(made.kernel)[lane] > lanes
        order = [*panels, lane, *below] if has_panels else [*panels, *below, lane]
        why = "tiles of rows share the panel of columns around them"
        made.take(*reordered([n for n in names.values() if n], order, why))
        if has_panels:
            outer, lane = _tile(made, lane, lanes, "columns")
            for other in below:
                made.take(Reorder(lane, other).because("the loop to vectorize is innermost"))
            panels.append(outer)
        if row and axes(made.kernel)[row] > rows:
            below[-1], row = _tile(made, row, rows, "rows")
        elif row:
            below.pop()
        for axis in (*panels, *below):
            made.take(Bind(axis, "cores").because("threads share panels and tiles of rows"))
        made.take(Vectorize(lane).because(f"a row of a tile has {lanes} accumulators"))
        if row and not _is_stored_whole(made):
            step = Fission(row, _reduction(made, row))
            made.take(step.because("the epilogue loads the sums of a tile, row by row"))
        step = Microkernel(mma.name if mma else "")
        made.take(step.because("panels are packed, and sums stay in registers"))


def _only_dot(group: Node) -> Node:
    """Returns the only matmul of a group. Raises CannotTile if a CPU kernel cannot compute the
    group.
    """
    body = group.blocks[0]
    dots = contractions(body.nodes)
    if len(dots) != 1:
        raise CannotTile("two dots are two kernels")
    (dot,) = dots
    if wide(dot.dtype) not in (F32, F64, I32):
        raise CannotTile(f"no schedule for a dot of {dot.dtype}")
    if any(memory_of(a) not in body.params for a in dot.args):
        raise CannotTile("an operand of the dot is computed in its group")
    if domain(body) is None:
        raise CannotTile("its outputs do not share one index space")
    return dot


def _tile(made: LoweredKernel, axis: str, size: int, what: str) -> tuple[str, str]:
    """Splits an axis into tiles of `size`; the last tile starts early if `size` does not divide the
    extent. Returns the axis over tiles and the axis inside a tile.
    """
    cut = Split(axis, size, "overlap")
    made.take(cut.because(f"a tile has {size} {what}"))
    return cut.outer, cut.inner


def _reduction(made: LoweredKernel, row: str) -> str:
    """Returns the name of the axis of the reduction loop inside the loop over axis `row`."""
    ((loop, _),) = loops_along(made.kernel, row)
    (sums,) = filter(is_loop, loop.blocks[0].nodes)
    return axis_of(sums)


def _is_stored_whole(made: LoweredKernel) -> bool:
    """True if the loop over rows only stores the sums of the matmul, without an epilogue."""
    return any(product.places for product in products_in(made.kernel))
