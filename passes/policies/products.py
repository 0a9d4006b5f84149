"""Matrix products on a GPU.

A program computes a tile of the result in a loop over blocks of the contracted axis, and applies
the epilogue to the tile. A matrix-vector product sums tiles of partial sums instead.

    c[i, j] = sum over k of a[i, k] * b[k, j]      f16, 4096 x 4096 x 4096:
    split k 64; split i 128; split j 256; vectorize k.1; vectorize j.1; vectorize i.1; tensorize;
    bind i.0 grid; bind j.0 grid; rasterize j.0 8; launch 8 stages=3
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

from stack.ir.contraction import ROUNDED
from stack.ir.node import Node
from stack.ir.traits import contractions
from stack.ir.warp_ops import MATRIX
from stack.passes.gpu_products.group_split import UNFUSED, horizontal_products
from stack.passes.gpu_products.library_copies import copy_seconds
from stack.passes.gpu_products.product_policy import ProductPolicy
from stack.passes.gpu_products.tile_choice import (
    LIBRARY,
    Product,
    Tile,
    best_seconds,
    horizontal_product,
    is_lone,
    library_seconds,
    product_of,
    unfused_seconds,
    whole_waves,
)
from stack.passes.policies.rows import arithmetic
from stack.passes.policies.step_lowering import StepLowering, reordered
from stack.passes.steps.loops import axes, nests
from stack.passes.steps.peel import LAST
from stack.passes.steps.primitives import (
    Bind,
    ComputeWith,
    Fuse,
    Launch,
    LoweredKernel,
    Peel,
    Pipeline,
    Rasterize,
    Rfactor,
    Split,
    Step,
    Tensorize,
    Threads,
    Vectorize,
)
from stack.passes.tiling.contraction import parts_of, products_of, result_names, roles_of
from stack.passes.tiling.frame import CannotTile, power_of_two
from stack.schedule import Schedule, first_schedule
from stack.target import Gpu


@dataclass(frozen=True)
class Nest:
    """The loops over the result of a product, or over some of its rows.

    Attributes:
        others: the axes that are not tiled, outermost first.
        row: the axis of the rows; "" for a matrix-vector product.
        lane: the axis of the columns.
        summed: the contracted axis.
        rows: the rows of a tile.
        lanes: the columns of a tile.
        is_row_last: whether programs along the rows run side by side.
    """

    others: tuple[str, ...]
    row: str
    lane: str
    summed: str
    rows: int
    lanes: int
    is_row_last: bool = False

    @property
    def tiled(self) -> dict[str, int]:
        """The axes of the result that are tiled, outermost first, with the block sizes."""
        found = [(self.row, self.rows), (self.lane, self.lanes)]
        return {name: n for name, n in (found[::-1] if self.is_row_last else found) if name}

    @property
    def axes(self) -> tuple[str, ...]:
        """The axes of the result, outermost first."""
        return (*self.others, *self.tiled)

    def peeled(self, rows: int, lanes: int) -> Nest:
        """Returns the description of the loops over the last rows, which get smaller tiles of
        `rows` x `lanes` because they do not fill all processors.
        """
        return replace(
            self,
            row=self.row + LAST,
            lane=self.lane + LAST,
            summed=self.summed + LAST,
            rows=rows,
            lanes=lanes,
        )


class Products(StepLowering[Gpu]):
    """Lowers a group with matrix products of one left operand."""

    def policy(self, has_threads: bool = False) -> ProductPolicy:
        """Returns the policy that picks the tiles.

        Its candidates include the alternatives to a fused kernel: a library call, or unfused
        kernels.

        Args:
            has_threads: as for `ProductPolicy`.

        Raises:
            CannotTile: the group has no kernel.
        """
        body, gpu = self.group.blocks[0], self.target
        dots = contractions(body.nodes)
        dtype = dots[0].args[0].dtype
        by_threads = has_threads and not (dtype.is_float and dtype.bits == 16)
        horizontal = [replace(p, by_threads=by_threads) for p in horizontal_products(body)]
        product = replace(self._product(horizontal), by_threads=by_threads)
        others: dict[str, float] = {}
        if is_lone(body, dots[0]):
            others[LIBRARY] = library_seconds(product, dtype, gpu) + copy_seconds(dots[0], gpu)
        if horizontal:
            others[UNFUSED] = sum(best_seconds(p, dtype, gpu) for p in horizontal)
        elif len(dots) > 1:
            others[UNFUSED] = unfused_seconds(product, dtype, gpu)
        return ProductPolicy(product, dtype, gpu, others, has_threads)

    def _product(self, horizontal: Sequence[Product]) -> Product:
        """Describes the matmuls of the group for the cost model, from its independent ones."""
        body = self.group.blocks[0]
        if horizontal:
            return horizontal_product(horizontal)
        return product_of(body, products_of(body))

    def take(self, made: LoweredKernel) -> None:
        body = self.group.blocks[0]
        product = self._product(horizontal_products(body))
        dots = [dot for dot, _ in parts_of(body)] or products_of(body)[:1]
        named = first_schedule(self.group)
        is_told = named is not None and named.is_by_threads
        dtype = dots[0].args[0].dtype
        policy = ProductPolicy(product, dtype, self.target, has_threads=is_told)
        steps = ProductSteps(policy, policy.of(self.group), made.kernel, dots)
        made.take(*steps.tiles(), *steps.sums(), *steps.programs())
        made.take(*arithmetic(body.results), steps.launch())


class ProductSteps:
    """Translates a schedule of matmuls into loop transformations.

    Args:
        policy: the policy of the group.
        schedule: a complete schedule.
        nest: the plain loop nest.
        dots: the matmuls of the group. Raises CannotTile if each has no loops of its own.
    """

    def __init__(
        self, policy: ProductPolicy, schedule: Schedule, nest: Node, dots: Sequence[Node]
    ) -> None:
        self.product, self.dtype, self.gpu = policy.product, policy.dtype, policy.gpu
        self.schedule, self.tile = schedule, Tile.of(schedule)
        loops, self.extents = nests(nest), dict(axes(nest))
        self.contracted = [n for n in self.extents if not any(n in names for names in loops)]
        self.order: list[Step] = []  # steps that interchange the loops over the results
        if len(loops) != len(dots):
            raise CannotTile("its outputs do not share one index space")
        self.nests = [self._nest(*pair) for pair in zip(dots, loops, strict=True)]

    def _nest(self, dot: Node, names: Sequence[str]) -> Nest:
        """Returns the loops over the result of a matmul; `names` are their axes, outermost
        first.
        """
        roles = roles_of(dot)
        real = [n for n in result_names(dot) if roles.sizes[n] > 1 or n == roles.lane]
        if len(real) != len(names):
            raise CannotTile("its outputs do not share one index space")
        name_of = dict(zip(real, names, strict=True))
        depths = [roles.sizes[n] for n in roles.contracted]
        if len(self.contracted) != len(depths):
            raise CannotTile("it reduces more than its products do")
        if depths[1:] and depths[-1] < MATRIX:
            raise CannotTile(f"a dot over several axes, the last of {depths[-1]} elements")
        given = [s.axis for s in self.schedule.splits if s.axis in "mn"]
        nest = Nest(
            others=tuple(name_of[n] for n in (*roles.batch, *roles.panels, *roles.outer)),
            row=name_of.get(roles.row, ""),
            lane=name_of[roles.lane],
            summed=self.contracted[0],
            rows=self.tile.rows,
            lanes=self.tile.lanes,
            is_row_last=given[:1] == ["n"],
        )
        self.order += reordered(names, nest.axes, "the order of the programs")
        return nest

    # ---- tiles

    def tiles(self) -> list[Step]:
        """Returns the loop transformations that split and vectorize the loops into tiles."""
        made = list(self.order)
        for name in self.contracted[1:]:
            made.append(Fuse(self.contracted[0], name).because("the contracted axes become one"))
            self.extents[self.contracted[0]] *= self.extents[name]
        made += self._tail()
        for name in self._summed():
            made.append(Split(name, self._depth(name)).because(self._why_depth(name)))
        for nest in self.nests:
            why = f"a tile of {' x '.join(map(str, nest.tiled.values()))} sums"
            made += [Split(n, self._block(n, size)).because(why) for n, size in nest.tiled.items()]
        return made

    def _summed(self) -> list[str]:
        """Returns the names of the contracted axes of all matmuls; each name once, as fused matmuls
        share one.
        """
        return list(dict.fromkeys(nest.summed for nest in self.nests))

    def _tail(self) -> list[Step]:
        """Returns the steps that peel off the last rows, which do not fill all processors, for
        smaller tiles.
        """
        (nest, *more) = self.nests
        last = self.tile.last
        if last is None or more or nest.others or not nest.row:
            return []
        whole = self._whole_waves(*last)
        if not whole:
            return []
        rest = self.extents[nest.row] - whole
        self.nests.append(nest.peeled(*last))
        for name in (nest.row, nest.lane, nest.summed):
            self.extents[name + LAST] = self.extents[name]
        self.extents |= {nest.row: whole, nest.row + LAST: rest}
        why = f"{whole} rows fill {self.gpu.processors} processors; the rest gets smaller tiles"
        return [Peel(nest.row, rest).because(why)]

    def _whole_waves(self, rows: int, lanes: int) -> int:
        """Returns how many rows are computed by waves of programs that fill all processors; 0 if
        the rest fits in one tile of `rows` x `lanes`.
        """
        height, width = self.product.height, self.product.width
        down, across = -(-height // self.tile.rows), -(-width // self.tile.lanes)
        whole = whole_waves(down, across, self.gpu) * self.tile.rows
        left = height - whole
        return whole if left > rows or (left > 0 and width > lanes) else 0

    def _depth(self, name: str) -> int:
        """Returns the block size of the contracted axis `name`."""
        whole, usual = self.gpu.matmuls.whole_depth, max(self.tile.step, MATRIX)
        if self.product.height > 1 and self.dtype.bits > 16:
            # the rounding error grows with the length of a block; blocks that are rounded to TF32
            # pass through registers
            whole = min(whole, usual)
        extent = max(MATRIX, power_of_two(self.extents[name]))
        return extent if self.extents[name] <= whole else min(usual, extent)

    def _why_depth(self, name: str) -> str:
        """The reason for the block size of the contracted axis."""
        extent, block = self.extents[name], self._depth(name)
        if block >= extent:
            return f"a tile has all {extent} products of a sum"
        return f"{self.tile.stages} blocks of {block} of {extent} products fit in shared memory"

    def _block(self, name: str, block: int) -> int:
        """The block size of an axis of the result."""
        return min(block, max(MATRIX, power_of_two(self.extents[name])))

    def _count(self, name: str, block: int) -> int:
        """The number of blocks along an axis."""
        return -(-self.extents[name] // block)

    # ---- sums

    def sums(self) -> list[Step]:
        """Returns the loop transformations with which a tile's sums are computed, such as
        `tensorize`.
        """
        made: list[Step] = []
        made += [Vectorize(f"{name}.1") for name in self._summed()]
        for nest in self.nests:
            made += [Vectorize(f"{name}.1") for name in (nest.lane, nest.row) if name]
        for name in self._summed():
            made += self._walk(name)
        if self._is_matrix():
            why = "matrix instructions" if self.dtype.bits <= 16 else "products of tiles"
            made.append(Tensorize(self._precision).because(why))
            made += self._threads()
        return made

    def _threads(self) -> list[Step]:
        """Returns the step `threads`, by which threads compute the sums without matrix
        instructions; empty if the schedule does not bind axes to threads.
        """
        lanes = self.schedule.bound("lane")
        own = {s.axis: s.block for s in self.schedule.bound("unroll")}
        if not (lanes or own):
            return []
        side = {"m": "rows", "n": "columns"}[lanes[0].axis] if lanes else ""
        memory = "shared" if self.schedule.of("k") else "global"
        why = "a sum for each lane" if lanes else "sums of a thread"
        return [Threads(own.get("m", 0), own.get("n", 0), side, memory).because(why)]

    @property
    def _precision(self) -> str:
        """The type to which operands may be rounded; empty for exact products."""
        if not self.product.rounds:
            return ""
        return ROUNDED if self.product.rounded else "tf32"

    def _is_matrix(self) -> bool:
        """True if the products are products of matrices, not of a matrix and a vector."""
        return all(nest.row for nest in self.nests)

    def _walk(self, name: str) -> list[Step]:
        """Returns the steps for the serial loop over blocks of the contracted axis `name`.

        Several matmuls share one loop; a matrix-vector product accumulates partial sums and
        prefetches. No steps if there is one block.
        """
        count = self._count(name, self._depth(name))
        if count == 1:
            return []
        made: list[Step] = []
        if self.product.gemms > 1:
            made.append(ComputeWith(f"{name}.0").because("the left operand is loaded once"))
        if not self._is_matrix():
            why = f"partial sums are reduced once, not {count} times"
            made.append(Rfactor(f"{name}.0").because(why))
            why = "loads overlap with computation"
            made.append(Pipeline(f"{name}.0", self.tile.stages, "shared").because(why))
        return made

    # ---- programs

    def programs(self) -> list[Step]:
        """The steps that distribute tiles over programs."""
        made: list[Step] = []
        for nest in self.nests:
            made += [Bind(name, "grid").because("independent") for name in nest.others]
            counts = {n: self._count(n, self._block(n, size)) for n, size in nest.tiled.items()}
            bound = [name for name, count in counts.items() if count > 1]
            made += [Bind(f"{n}.0", "grid").because(f"{counts[n]} programs") for n in bound]
            is_inside = len(bound) + len(nest.others) > 1
            if bound[-1:] == [nest.lane] and is_inside and not nest.is_row_last:
                rows = self.gpu.matmuls.raster_rows
                why = f"programs of {rows} rows of tiles share operands in the cache"
                made.append(Rasterize(f"{nest.lane}.0", rows).because(why))
        return made

    def launch(self) -> Step:
        """The step that sets the launch configuration."""
        nest = self.nests[0]
        counts = [self._count(n, self._block(n, size)) for n, size in nest.tiled.items()]
        total = prod(counts) * prod(self.extents[n] for n in nest.others)
        is_persistent = self.tile.persistent and total > self.gpu.processors
        programs = self.gpu.processors if is_persistent else 0
        why = f"{prod(nest.tiled.values())} sums in registers"
        return Launch(self.tile.warps, self.tile.stages, programs).because(why)
