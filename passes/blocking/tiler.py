"""One fusion group to one kernel of blocks: which axes programs share, which a tile holds."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from stack.ir.axes import Index
from stack.ir.dim import Dim, Expr, substitute, symbols
from stack.ir.node import Node
from stack.ir.traits import is_contraction
from stack.ir.types import DType
from stack.ir.warp_ops import MATRIX
from stack.passes.blocking.dots import BlockDots
from stack.passes.blocking.frame import NamedTile
from stack.passes.blocking.kernel import Grid, Stored
from stack.passes.blocking.multi_gemm import products_of
from stack.passes.blocking.product_policy import ProductPolicy
from stack.passes.blocking.tile_choice import Product, Tile, product_of, whole_waves
from stack.passes.tiling.contraction import Roles, result_names, roles_of
from stack.passes.tiling.frame import CannotTile, power_of_two
from stack.schedule import first_schedule
from stack.target import Target, as_gpu
from stack.target.record import RASTER_ROWS

STEP = 2048  # elements of a long row in one step


class BlockTiler(BlockDots):
    """Builds the kernel of a group with a product."""

    def __init__(self, group: Node, target: Target | None = None) -> None:
        super().__init__(group)
        self.gpu = as_gpu(target)
        self.rows = self.lanes = 0
        self.order = ("m", "n")  # of the programs of a product
        self.warps = 4
        self.stages = 2
        self.is_persistent = False
        self.hints: dict[str, object] = {}
        self.streams_out = not any(map(is_contraction, self.body.nodes))
        self.last: tuple[int, int] | None = None  # of tiles for rows behind the whole waves

    def check(self) -> None:
        super().check()
        for block in self.group.blocks:
            if any(n.op == "pow" and not n.dtype.is_float for n in block.nodes):
                raise CannotTile("it raises integers to powers")

    # ---- the kernel

    def kernel(self) -> Node:
        """The kernel node of the group. Raises CannotTile."""
        root, iter_vars, index_maps = self._root()
        roles = roles_of(root)
        self._take(product_of(self.body, self.gemms), root.args[0].dtype)
        whole = self._whole_waves(roles)
        if not self.last or not whole:
            found = self._dot_axes(root, roles, self.grid)
            return self.finish(self.sited(iter_vars, index_maps, found), None)
        first = self._dot_axes(root, roles, self.grid, (0, whole))
        self.rows, self.lanes = self.last
        grid: Grid = []
        rest = self._dot_axes(root, roles, grid, (whole, roles.sizes[roles.row]))
        tail = grid, self.sited(iter_vars, index_maps, rest)
        return self.finish(self.sited(iter_vars, index_maps, first), None, [tail])

    def finish(
        self,
        results: Stored,
        long: tuple[Expr, int] | None,
        more: Sequence[tuple[Grid, Stored]] = (),
    ) -> Node:
        """The kernel that stores the results at their places.

        `long` is a symbol for an axis that is walked in steps where a result has it. `more` are
        other programs, with the places that they store.
        """
        outputs = self.outputs
        final: list[Node] = list(outputs)
        for grid, stored in [(self.grid, results), *more]:

            def program(memories: Sequence[Node], stored: Stored = stored) -> list[Node]:
                return self._stores(stored, memories, long)

            final = self.in_grid(grid, final, program)
        hints: dict[str, object] = {"warps": self.warps, "stages": self.stages, **self.hints}
        if self.is_persistent and prod(count for _, count in self.grid) > self.gpu.processors:
            hints["programs"] = self.gpu.processors
        return self.built(final, **hints)

    def _stores(
        self,
        results: Sequence[tuple[Node, Index]],
        memories: Sequence[Node],
        long: tuple[Expr, int] | None,
    ) -> list[Node]:
        """Write the results; those that have the long axis are made in one walk along it."""
        name = str(long[0]) if long is not None else ""
        in_loop = [
            i
            for i, (_, place) in enumerate(results)
            if any(s.name == name for d in place for s in symbols(d))
        ]
        final = [
            m if i in in_loop else self.store(m, self.value(result, place), place)
            for i, ((result, place), m) in enumerate(zip(results, memories, strict=True))
        ]
        if long is None or not in_loop:
            return final
        extent = long[1]
        others = [substitute(d, {name: 0}) for i in in_loop for d in results[i][1]]
        step = self.reduction_loop.block if self.reduction_loop.is_first else STEP
        block = min(power_of_two(extent), max(1, step // self.held_along(others)))

        def body(var: Node, carried: list[NamedTile]) -> list[NamedTile]:
            step = self.axis("w", extent, block, self.begin(var, block))
            made: list[NamedTile] = []
            for i, memory in zip(in_loop, carried, strict=True):
                result, place = results[i]
                at = tuple(substitute(d, {name: step.place}) for d in place)
                made.append(NamedTile(self.store(memory.node, self.value(result, at), at)))
            return made

        start = [NamedTile(memories[i]) for i in in_loop]
        hints = [f"{m.node.attrs.get('name', 'o')}_w" for m in start]
        stored = self.second_loop(-(-extent // block), start, body, hints)
        for i, held in zip(in_loop, stored, strict=True):
            final[i] = held.node
        return final

    def _spanning(self) -> list[Node]:
        self.gemms = products_of(self.body)
        return self.gemms

    def _sites(self, root: Node, iter_vars: Index) -> dict[Node, Index]:
        index_maps = super()._sites(root, iter_vars)
        for result in self.body.results:
            if result.shape == root.shape:
                index_maps.setdefault(result, iter_vars)  # it holds rows spread over another axis
        return index_maps

    # ---- axes

    def _dot_axes(
        self, dot: Node, roles: Roles, grid: Grid, part: tuple[int, int] | None = None
    ) -> list[Dim]:
        """Places of the result; `part` is the first row of a grid, and the end of its rows."""
        index: dict[str, Dim] = {}
        for name in (*roles.batch, *roles.panels, *roles.outer):
            index[name] = self.program_axis("b", roles.sizes[name], 1, grid).place
        for axis in self.order:
            if axis == "n":
                extent = roles.sizes[roles.lane]
                block = min(self.lanes, max(16, power_of_two(extent)))
                index[roles.lane] = self.program_axis("n", extent, block, grid).place
                if axis == self.order[-1] and extent > block:
                    self.groups[grid[-1][0]] = RASTER_ROWS
            elif roles.row:
                first, end = part or (0, roles.sizes[roles.row])
                block = min(self.rows, max(16, power_of_two(end - first)))
                index[roles.row] = self.program_axis("m", end, block, grid, first=first).place
        return [index.get(name, 0) for name in result_names(dot)]

    def _whole_waves(self, roles: Roles) -> int:
        """Rows that the tile takes while all processors have one; 0 where that is for all."""
        if not self.last or not roles.row or roles.batch or roles.panels or roles.outer:
            return 0
        height, width = roles.sizes[roles.row], roles.sizes[roles.lane]
        lines = whole_waves(-(-height // self.rows), -(-width // self.lanes), self.gpu)
        left = height - lines * self.rows
        is_cut = left > self.last[0] or (left > 0 and width > self.last[1])
        return lines * self.rows if is_cut else 0

    def _take(self, product: Product, dtype: DType) -> None:
        """Follow the schedule that the group names, or the one that the model puts first."""
        named = first_schedule(self.group)
        is_told = named is not None and named.is_by_threads
        schedule = ProductPolicy(product, dtype, self.gpu, has_threads=is_told).of(self.group)
        tile = Tile.of(schedule)
        named = [s.axis for s in schedule.splits if s.axis in "mn"]
        self.order = tuple(dict.fromkeys((*named, "m", "n")))
        self.rows, self.lanes, self.step = tile.rows, tile.lanes, max(tile.step, MATRIX)
        if product.height > 1 and dtype.bits > 16 and not product.rounds:
            self.whole = min(self.whole, self.step)  # sums round more, the longer a step is
        self.hints = {"schedule": str(schedule)} if is_told else {}
        self.warps, self.stages = tile.warps, tile.stages
        self.is_persistent, self.last = tile.persistent, tile.last


__all__ = ["BlockTiler"]
