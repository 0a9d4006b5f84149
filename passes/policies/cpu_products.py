"""Matrix products on a CPU: tiles of accumulators in vector registers, over packed panels.

Threads share panels of columns. Each packs its panel, and multiplies it with tiles of rows. The
sums of a tile are one `dot` of blocks. The epilogue loads them from local memory, row by row.

    relu of the product of 512 x 512 and 512 x 512 numbers:
    reorder i j; split j 64 tail=overlap; reorder j.1 i; split i 6 tail=overlap; bind j.0 cores;
    vectorize j.1; fission i.1 k; microkernel i.1; pack p1; prefetch p1; prefetch p0

Sizes that a tile does not divide need no second kernel: the last tile starts early, and computes
some elements again. If there are fewer panels than cores, groups of tiles of rows share a panel:

    split i.0 22 tail=overlap; bind j.0 cores; bind i.0.0 cores

If a panel does not fit in the cache, its reduction axis is cut: `accumulate k 2048; pack p1`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

from stack.ir.contraction import is_along_depth, product_types
from stack.ir.node import Node
from stack.ir.traits import contractions
from stack.ir.types import F32, F64, I32
from stack.passes.cpu_products.gemm import (
    WIDTHS,
    check_worth,
    is_kept,
    memory_of,
    mma_of,
    panels_of,
    tile_of,
    why_sums,
)
from stack.passes.cpu_products.panels import Panels, run_of
from stack.passes.nest.emit import axis_names, domain
from stack.passes.policies.step_lowering import StepLowering, reordered, split
from stack.passes.steps.loops import all_loops, axes, axis_of, loops_along, stores_only
from stack.passes.steps.microkernel import product_at
from stack.passes.steps.pack import ONCE
from stack.passes.steps.panels import block_products, names_of_memory
from stack.passes.steps.primitives import (
    Accumulate,
    Bind,
    Compensate,
    Fission,
    LoweredKernel,
    Microkernel,
    Pack,
    Prefetch,
    Reorder,
    Vectorize,
)
from stack.passes.tiling.contraction import operand_names, product_axes, result_names, roles_of
from stack.passes.tiling.frame import CannotTile, static, wide
from stack.schedule import Axis, AxisSplit, Domain, Need, Prediction, Schedule
from stack.target import Cpu


class CpuProducts(StepLowering[Cpu]):
    """Lowers a group with a matrix product."""

    @property
    def dots(self) -> list[Node]:
        """The matmuls of the group."""
        return contractions(self.group.blocks[0].nodes)

    @cached_property
    def domain(self) -> Domain:
        """The axes: m (rows, unrolled), n (columns, vectorized), k and b; none without exactly one
        matmul. Raises CannotTile if it has no tile, or if a library computes it faster.
        """
        if len(self.dots) != 1 or 0 in self.dots[0].shape:
            return Domain(options=())
        (dot,) = self.dots
        check_worth(dot, self.target)
        roles = roles_of(dot, by_lane=True)
        height, width = roles.height, roles.width
        axes = product_axes(
            Axis("b", roles.products, "parallel"),
            Axis("m", height, "parallel", ("unroll",), most=height, is_free=True),
            Axis("n", width, "parallel", ("vector",), most=width),
            Axis("k", roles.depth, "reduction"),
        )
        return Domain(axes, options=())

    def candidates(self) -> list[tuple[Schedule, Prediction | None]]:
        vector = self.target.vector_bytes // wide(self.dots[0].dtype).bytes
        width = roles_of(self.dots[0], by_lane=True).width
        columns = [c * vector for c in WIDTHS if c * vector <= width]
        own = self.complete(Schedule())
        others = [self.complete(Schedule((AxisSplit("n", c, "vector"),))) for c in columns]
        return [(s, None) for s in dict.fromkeys((own, *others))]

    def complete(self, given: Schedule) -> Schedule:
        (dot,), given_tile = self.dots, (given.block("n"), given.block("m"))
        rows, lanes = tile_of(dot, self.target, *given_tile, is_kept(self.group, dot))
        own = (AxisSplit("m", rows, "unroll"), AxisSplit("n", lanes, "vector"))
        return given.filled(Schedule(own if self.domain.axis("m") else own[1:]))

    def needs(self, schedule: Schedule) -> Sequence[Need]:
        (dot,), cpu = self.dots, self.target
        mma, rows, lanes = mma_of(dot, cpu), schedule.block("m", 1), schedule.block("n")
        if mma and mma.rows > 1 and mma.divides(rows, lanes, mma.depth):
            return []  # it has registers of its own for the sums
        sums = rows * -(-lanes * wide(dot.dtype).bytes // cpu.vector_bytes)
        return [Need("vector registers for sums", sums, cpu.registers)]

    def take(self, made: LoweredKernel) -> None:
        dot = _only_dot(self.group)
        tile = panels_of(dot, self.target, self.schedule.block("n"), self.schedule.block("m"))
        names = dict(zip(result_names(dot), axis_names(dot, ()), strict=True))
        roles, lanes = tile.roles, tile.lanes
        panels = [names[n] for n in (*roles.batch, *roles.panels)]
        below = [names[n] for n in (*roles.outer, roles.row) if n]
        lane, row = names[roles.lane], names.get(roles.row, "")
        has_panels = axes(made.kernel)[lane] > lanes
        order = [*panels, lane, *below] if has_panels else [*panels, *below, lane]
        why = "tiles of rows share the panel of columns around them"
        made.take(*reordered([n for n in names.values() if n], order, why))
        if has_panels:
            outer, lane = split(made, lane, lanes, "overlap", f"a tile has {lanes} columns")
            for other in below:
                made.take(Reorder(lane, other).because("the loop to vectorize is innermost"))
            panels.append(outer)
        outer, row = split(made, row, tile.rows, "overlap", f"a tile has {tile.rows} rows")
        below[-1:] = [outer] if outer else below[-1:]
        if tile.groups > 1:
            share = -(-tile.outermost // tile.groups)
            why = f"{tile.groups} groups of rows give all threads work"
            panels.append(split(made, below[0], share, "overlap", why)[0])
        for axis in panels:
            made.take(Bind(axis, "cores").because("threads share panels of columns"))
        made.take(Vectorize(lane).because(f"a row of a tile has {lanes} accumulators"))
        reduction = next(axis_of(n) for n, _ in all_loops(made.kernel) if not stores_only(n))
        if row and not _is_stored_whole(made, row):
            step = Fission(row, reduction)
            made.take(step.because("the epilogue loads the sums of a tile, row by row"))
        shape = [tile.rows, lanes] if row else [lanes]
        step = Microkernel(row or reduction, tile.mma.name if tile.mma else "")
        made.take(step.because(why_sums(shape, wide(dot.dtype), tile.mma, self.target)))
        if not tile.is_in_place:
            self._pack(made, dot, tile)

    def _pack(self, made: LoweredKernel, dot: Node, tile: Panels) -> None:
        """Packs the panels that the tiles of rows of a matmul read."""
        (product,) = block_products(made.kernel)
        rows, columns = map(names_of_memory(made.kernel), (product.rows, product.panel))
        if tile.block:
            names = operand_names(dot, tile.roles.right)
            axis = product.panel_names[names.index(tile.cut) - len(names)]
            why = "a block of a panel fits in the second-level cache"
            made.take(Accumulate(axis, tile.block).because(why))
        once = Pack(columns, ONCE).because("it is the same in all calls")
        if not (is_kept(self.group, dot) and made.may(once)):
            rows_read = tile.roles.count(tile.roles.outer) * tile.roles.height
            why = f"all {rows_read} rows read a panel in order, from the cache"
            made.take(Pack(columns).because(why))
        if tile.groups == 1:
            made.may(Prefetch(columns).because("the next panel is there when it is packed"))
        if not tile.fits_rows:
            made.may(Prefetch(rows).because("rows do not stay in the cache from panel to panel"))
        if tile.mma and tile.mma.offset:
            why = "it multiplies unsigned rows; what that adds is computed once for a panel"
            made.take(Compensate(tile.mma.name).because(why))


def strided_columns(kernel: Node, cpu: Cpu) -> str:
    """Returns the name of a memory in which the columns of a matrix product are strided, so that it
    has to be packed; "" if there is none.
    """
    for product in block_products(kernel):
        rows, lanes, _ = product.tile
        mma = next((m for m in cpu.mmas(product_types(product.dot)) if m.rows == 1), None)
        depth = static(product.panel.shape[-1])
        few = min(lanes, cpu.sums_beside(rows + bool(mma and mma.offset)))
        is_whole = depth % run_of(mma, cpu) == 0 and lanes % few == 0
        if not (product.is_contiguous or (is_along_depth(product.dot) and is_whole)):
            return names_of_memory(kernel)(product.panel)
    return ""


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


def _is_stored_whole(made: LoweredKernel, row: str) -> bool:
    """True if the loop over rows only stores the sums of the matmul, without an epilogue."""
    ((loop, _),) = loops_along(made.kernel, row)
    return product_at(made.kernel.blocks[0], loop) is not None
