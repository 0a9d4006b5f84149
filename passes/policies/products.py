"""Matrix products on a GPU.

A program computes a tile of the result in a loop over blocks of the contracted axis, and applies
the epilogue to the tile. A matrix-vector product sums tiles of partial sums instead.

    c[i, j] = sum over k of a[i, k] * b[k, j]      f16, 4096 x 4096 x 4096:
    split k 64; split i 128; split j 256; vectorize k.1; vectorize j.1; vectorize i.1; tensorize;
    bind i.0 grid; bind j.0 grid; rasterize j.0 8; launch 8 stages=3
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from math import prod
from typing import NamedTuple

from stack.ir.contraction import ROUNDED
from stack.ir.node import Node
from stack.ir.traits import contractions
from stack.ir.types import DType
from stack.ir.warp_ops import MATRIX, WARP
from stack.passes.gpu_products.group_split import UNFUSED, horizontal_products
from stack.passes.gpu_products.tile_choice import (
    LIBRARY,
    Product,
    Tile,
    best_seconds,
    copy_seconds,
    horizontal_product,
    is_lone,
    library_seconds,
    predicted,
    product_of,
    ranked,
    tiles_of,
    unfused_seconds,
    whole_waves,
)
from stack.passes.policies.gpu_steps import arithmetic, programs, serial_loop, splits
from stack.passes.policies.step_lowering import StepLowering, reordered
from stack.passes.steps.loops import axes, nests
from stack.passes.steps.partition import LAST
from stack.passes.steps.primitives import (
    Bind,
    Fuse,
    Launch,
    LoweredKernel,
    Peel,
    Rasterize,
    Step,
    Tensorize,
    Threads,
    Vectorize,
)
from stack.passes.tiling.contraction import (
    parts_of,
    product_axes,
    products_of,
    result_names,
    roles_of,
)
from stack.passes.tiling.frame import CannotTile, power_of_two
from stack.schedule import Axis, Domain, Need, Prediction, Schedule, first_schedule
from stack.target import Gpu


class Nest(NamedTuple):
    """The loops over the result of a product, or over some of its rows."""

    others: Sequence[str]  # the axes that are not tiled, outermost first
    row: str  # the axis of the rows; "" for a matrix-vector product
    lane: str  # the axis of the columns
    summed: str  # the contracted axis
    tiled: Mapping[str, int]  # the axes of rows and columns, outermost first, with their blocks


class Products(StepLowering[Gpu]):
    """Lowers a group with matrix products of one left operand.

    A schedule has blocks of the axes m (rows), n (columns), k (depth) and b (batch). The candidates
    include the alternatives to a fused kernel: a library call, or unfused kernels. If axes may be
    bound to threads, the last, partial wave of programs has no smaller blocks.
    """

    @cached_property
    def dots(self) -> list[Node]:
        """The matmuls of the group."""
        return contractions(self.group.blocks[0].nodes)

    @property
    def dtype(self) -> DType:
        """The type of the operands."""
        return self.dots[0].args[0].dtype

    @cached_property
    def apart(self) -> list[Product]:
        """The independent matmuls of the group, each with programs of its own, for the cost model;
        empty if there is one matmul, or if a result depends on several. Raises CannotTile.
        """
        return [self._described(p) for p in horizontal_products(self.group.blocks[0])]

    @cached_property
    def product(self) -> Product:
        """All matmuls of the group, for the cost model. Raises CannotTile if one kernel cannot
        compute them.
        """
        body = self.group.blocks[0]
        if self.apart:
            return horizontal_product(self.apart)
        return self._described(product_of(body, products_of(body)))

    def _described(self, product: Product) -> Product:
        is_short = self.dtype.is_float and self.dtype.bits == 16
        return replace(product, by_threads=self.has_threads and not is_short)

    @cached_property
    def domain(self) -> Domain:
        """The axes. Raises CannotTile if the group has no kernel."""
        p = self.product
        unit = MATRIX if p.height > 1 else 1
        grid = ("grid", "lane", "unroll") if self.has_threads and p.height > 1 else ("grid",)
        words = (LIBRARY,) if is_lone(self.group.blocks[0], self.dots[0]) else ()
        return Domain(
            product_axes(
                Axis("b", p.batch, "parallel", grid, most=1),
                Axis("m", p.height, "parallel", grid, unit=unit),
                Axis("n", p.width, "parallel", grid, unit=unit),
                Axis("k", p.depth, "reduction", ("serial",), unit=unit),
            ),
            options=("warps", "stages", "persistent"),
            words=(*words, UNFUSED) if len(self.dots) > 1 else words,
            tails=not self.has_threads,
        )

    # ---- what a schedule leaves open

    @cached_property
    def schedule(self) -> Schedule:
        """The schedule of the kernel: that of the group, else the best tile."""
        named, best = first_schedule(self.group), self._tiles
        return min(best, key=lambda s: best[s].seconds) if named is None else self.follow(named)

    @property
    def _tiles(self) -> dict[Schedule, Prediction]:
        return {
            self._limited(tile.schedule): predicted(tile, self.product, self.dtype, self.target)
            for tile in self._ranked()
        }

    def candidates(self) -> list[tuple[Schedule, Prediction | None]]:
        found, gpu = self._tiles, self.target
        for word in self.domain.words:
            found[Schedule(instead=word)] = Prediction(self._seconds(word))
        # a library must be faster by a margin
        margin = {LIBRARY: 1 / gpu.matmuls.library_gain}
        best = sorted(found, key=lambda s: found[s].seconds * margin.get(s.instead, 1))
        return [(schedule, found[schedule]) for schedule in best]

    def _seconds(self, word: str) -> float:
        """Predicts the seconds of an alternative to the kernel, by the word that selects it."""
        product, dtype, gpu = self.product, self.dtype, self.target
        if word == LIBRARY:
            return library_seconds(product, dtype, gpu) + copy_seconds(self.dots[0], gpu)
        if self.apart:
            return sum(best_seconds(p, dtype, gpu) for p in self.apart)
        return unfused_seconds(product, dtype, gpu)

    def misfits(self) -> Sequence[Schedule]:
        tiles = tiles_of(self.product, self.dtype, self.target)
        return [t.schedule for t in tiles if self.why_illegal(t.schedule)]

    def complete(self, given: Schedule) -> Schedule:
        best = self._ranked()[0].schedule
        if given.is_by_threads:
            return self._by_threads(given, best)
        made = given.filled(replace(best, warps=0, stages=0))
        if all(made.block(axis) == best.block(axis) for axis in "mn"):
            warps, stages = best.warps, best.stages
        else:
            sums = made.block("m", 1) * made.block("n") * self.product.gemms
            warps = 8 if sums >= self.target.tile_registers else 4
            stages = self.target.matmuls.stages
        made = replace(made, warps=made.warps or warps)
        return made if made.stages else self._limited(replace(made, stages=stages))

    def _by_threads(self, given: Schedule, best: Schedule) -> Schedule:
        """Completes the user's partial schedule `given` for multiply-adds of threads, with values
        of `best`. If it has no block of k, threads load operands from global memory directly.
        """
        usual = [s for s in best.splits if s.axis != "k" or given.of("k")]
        made = given.filled(Schedule(tuple(usual), stages=1))
        return replace(made, warps=made.warps or max(1, self._threads(made) // WARP))

    def _threads(self, schedule: Schedule) -> int:
        """Returns the number of threads of a program; each thread computes several sums if the
        block has more sums than a program may have threads.
        """
        own = schedule.bound("unroll")
        threads = schedule.block("m") * schedule.block("n") // prod(s.block for s in own)
        return threads if own else min(threads, self.target.threads)

    def why_illegal(self, schedule: Schedule) -> str:
        found = super().why_illegal(schedule)
        return found or (self._why_not_by_threads(schedule) if schedule.is_by_threads else "")

    def _why_not_by_threads(self, schedule: Schedule) -> str:
        lanes, own = schedule.bound("lane"), schedule.bound("unroll")
        if lanes and (own or lanes[1:]):
            return f"{(*lanes, *own)[1]}: lanes have one sum each, along axis {lanes[0].axis} only"
        for split in lanes:
            block = schedule.block(split.axis)
            if split.block != 1:
                return f"axis {split.axis}: {split}, but a lane has 1 element"
            if block % WARP:
                return f"axis {split.axis}: a block of {block} is no multiple of {WARP} lanes"
        threads = self._threads(schedule)
        if own and threads != schedule.warps * WARP:
            each = prod(s.block for s in own)
            sums = f"{schedule.block('m')} x {schedule.block('n')} sums"
            return f"warps={schedule.warps}: {sums} need {threads / WARP:g} warps, {each} a thread"
        return ""

    def needs(self, schedule: Schedule) -> Sequence[Need]:
        tile = self._tile(schedule)
        step = tile.step_bytes(self.dtype.bytes)
        found = [
            Need("threads", tile.warps * WARP, self.target.threads),
            Need("bytes of shared memory", tile.stages * step, self.target.operand_bytes),
        ]
        if tile.rows > 1:
            sums = tile.sums(self.dtype)
            found.append(Need("registers for sums", sums, self.target.tile_registers))
        return found

    def _ranked(self) -> list[Tile]:
        found = ranked(self.product, self.dtype, self.target)
        return [tile for tile in found if not (self.has_threads and tile.last)]

    def _limited(self, schedule: Schedule) -> Schedule:
        """Limits the stages of a schedule to what fits in shared memory, at least one."""
        step = self._tile(schedule).step_bytes(self.dtype.bytes)
        room = self.target.operand_bytes // max(1, step)
        return replace(schedule, stages=max(1, min(schedule.stages, room)))

    def _tile(self, schedule: Schedule) -> Tile:
        return replace(Tile.of(schedule), products=self.product.gemms)

    # ---- steps

    def take(self, made: LoweredKernel) -> None:
        body, product, gpu = self.group.blocks[0], self.product, self.target
        named = first_schedule(self.group)
        self.has_threads = named is not None and named.is_by_threads
        tile = Tile.of(self.schedule)
        found = self._nests(made, tile)
        found += self._tail(made, tile, *found)
        extents = axes(made.kernel)
        summed = dict.fromkeys(nest.summed for nest in found)  # fused matmuls share one
        blocks = {name: self._depth(extents[name], tile) for name in summed}
        for nest in found:
            sizes = nest.tiled.items()
            blocks |= {n: min(size, max(MATRIX, power_of_two(extents[n]))) for n, size in sizes}
        counts = {name: -(-extents[name] // block) for name, block in blocks.items()}
        steps = splits(blocks, extents)
        inner = [*summed, *(n for nest in found for n in (nest.lane, nest.row) if n)]
        steps += [Vectorize(f"{name}.1") for name in inner]
        is_matrix = all(nest.row for nest in found)
        for name in (n for n in summed if counts[n] > 1):
            steps += serial_loop(
                f"{name}.0",
                counts[name],
                is_shared=product.gemms > 1,
                has_sums=not is_matrix,
                ahead=0 if is_matrix else tile.stages,
                through="shared",
            )
        if is_matrix:
            why = "matrix instructions" if self.dtype.bits <= 16 else "products of tiles"
            rounded = ROUNDED if product.rounded else "tf32"
            steps.append(Tensorize(rounded if product.rounds else "").because(why))
            steps += self._multiply_adds()
        for nest in found:
            steps += self._programs(nest, extents, blocks)
        first = found[0]
        total = prod(counts[n] for n in first.tiled) * prod(extents[n] for n in first.others)
        is_persistent = tile.persistent and total > gpu.processors
        launch = Launch(tile.warps, tile.stages, gpu.processors if is_persistent else 0)
        why = f"{prod(first.tiled.values())} sums in registers"
        made.take(*steps, *arithmetic(body.results), launch.because(why))

    def _nests(self, made: LoweredKernel, tile: Tile) -> list[Nest]:
        """Orders the loops over the result of each matmul, and makes the contracted axes one.
        Returns these loops. Raises CannotTile if a matmul has no loops of its own.
        """
        loops, found = nests(made.kernel), list[Nest]()
        dots = [dot for dot, _ in parts_of(self.group.blocks[0])] or self.dots[:1]
        contracted = [n for n in axes(made.kernel) if not any(n in names for names in loops)]
        given = [s.axis for s in self.schedule.splits if s.axis in "mn"]
        if len(loops) != len(dots):
            raise CannotTile("its outputs do not share one index space")
        for dot, names in zip(dots, loops, strict=True):
            roles = roles_of(dot)
            real = [n for n in result_names(dot) if roles.sizes[n] > 1 or n == roles.lane]
            if len(real) != len(names):
                raise CannotTile("its outputs do not share one index space")
            name_of = dict(zip(real, names, strict=True))
            depths = [roles.sizes[n] for n in roles.contracted]
            if len(contracted) != len(depths):
                raise CannotTile("it reduces more than its products do")
            if depths[1:] and depths[-1] < MATRIX:
                raise CannotTile(f"a dot over several axes, the last of {depths[-1]} elements")
            others = [name_of[n] for n in (*roles.batch, *roles.panels, *roles.outer)]
            row, lane = name_of.get(roles.row, ""), name_of[roles.lane]
            tiled = {name: n for name, n in ((row, tile.rows), (lane, tile.lanes)) if name}
            tiled = dict(reversed(tiled.items())) if given[:1] == ["n"] else tiled
            found.append(Nest(others, row, lane, contracted[0], tiled))
            made.take(*reordered(names, [*others, *tiled], "the order of the programs"))
        why = "the contracted axes become one"
        made.take(*(Fuse(contracted[0], other).because(why) for other in contracted[1:]))
        return found

    def _tail(self, made: LoweredKernel, tile: Tile, nest: Nest, *more: Nest) -> list[Nest]:
        """Peels off the last rows, which do not fill all processors, for smaller tiles. Returns the
        loops over them.
        """
        if tile.last is None or more or nest.others or not nest.row:
            return []
        (rows, lanes), height, width = tile.last, self.product.height, self.product.width
        down, across = -(-height // tile.rows), -(-width // tile.lanes)
        whole = whole_waves(down, across, self.target) * tile.rows
        left = height - whole
        if not whole or not (left > rows or (left > 0 and width > lanes)):
            return []
        why = f"{whole} rows fill {self.target.processors} processors; the rest gets smaller tiles"
        made.take(Peel(nest.row, left).because(why))
        row, lane, summed = (name + LAST for name in (nest.row, nest.lane, nest.summed))
        sizes = {row: rows, lane: lanes}
        return [Nest((), row, lane, summed, {n + LAST: sizes[n + LAST] for n in nest.tiled})]

    def _depth(self, extent: int, tile: Tile) -> int:
        """Returns the block size of a contracted axis."""
        whole, usual = self.target.matmuls.whole_depth, max(tile.step, MATRIX)
        if self.product.height > 1 and self.dtype.bits > 16:
            # the rounding error grows with the length of a block; blocks that are rounded to TF32
            # pass through registers
            whole = min(whole, usual)
        padded = max(MATRIX, power_of_two(extent))
        return padded if extent <= whole else min(usual, padded)

    def _multiply_adds(self) -> list[Step]:
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

    def _programs(
        self, nest: Nest, extents: Mapping[str, int], blocks: Mapping[str, int]
    ) -> list[Step]:
        """Returns the steps that distribute the tiles of a matmul over programs."""
        made: list[Step] = [Bind(name, "grid").because("independent") for name in nest.others]
        made += programs(extents, {name: blocks[name] for name in nest.tiled})
        is_last = [*nest.tiled][-1] == nest.lane and extents[nest.lane] > blocks[nest.lane]
        if is_last and len(made) > 1:
            rows = self.target.matmuls.raster_rows
            why = f"programs of {rows} rows of tiles share operands in the cache"
            made.append(Rasterize(f"{nest.lane}.0", rows).because(why))
        return made
