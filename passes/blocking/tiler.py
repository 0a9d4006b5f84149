"""One fusion group to one kernel of blocks: which axes programs share, which a tile holds."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from stack.ir.axes import Index, parse_rule
from stack.ir.dim import Dim, Expr, product, substitute, symbol, symbols
from stack.ir.node import Node
from stack.ir.relation import delinearize
from stack.ir.types import DType
from stack.passes.blocking.dots import BlockDots
from stack.passes.blocking.frame import Axis, Held
from stack.passes.blocking.joined import products_of
from stack.passes.blocking.kernel import Grid, Stored
from stack.passes.blocking.reduce import MAX_WHOLE, ONCE, TWICE, in_a_row
from stack.passes.blocking.tile_choice import (
    Product,
    Tile,
    first_tile,
    product_of,
    ranked,
    room_of,
    whole_turns,
)
from stack.passes.tiling.contraction import Roles, result_names, roles_of
from stack.passes.tiling.frame import CannotTile, power_of_two, static
from stack.target import Gpu, Target, as_gpu

LOOP_TILE = 1024  # elements of a tile of elementwise work
ROW_TILE = 4096  # likewise, of rows that data picks: none is read before its index is there
TURNED = 64  # extent of a tile that is read along one axis and written along another
STEP = 2048  # elements of a long row in one step
MAX_COLUMN = 16  # elements of an axis, reduced across the lines of memory, that a tile holds whole
COLUMNS = 128  # kept elements of a tile that walks along such an axis


class BlockTiler(BlockDots):
    """Builds the kernel of a loop, reduction or gemm group."""

    def __init__(
        self,
        group: Node,
        rows: int = 0,
        lanes: int = 0,
        step: int = 0,
        target: Target | None = None,
    ) -> None:
        super().__init__(group)
        self.gpu = as_gpu(target)
        self.rows, self.lanes, self.step = rows, lanes, step
        self.warps = 4
        self.stages = 2
        self.is_persistent = False
        self.streams_out = not any(n.op == "dot" for n in self.body.nodes)
        self.last: tuple[int, int] | None = None  # of tiles for rows behind the whole turns

    def check(self) -> None:
        super().check()
        for block in self.group.blocks:
            if any(n.op == "pow" and not n.dtype.is_float for n in block.nodes):
                raise CannotTile("it raises integers to powers")

    # ---- the kernel

    def kernel(self) -> Node:
        """The kernel node of the group. Raises CannotTile."""
        root, marks, places = self._root()

        if root.op != "dot":
            found, long = self._space_axes(root, places, marks)
            return self.finish(self.sited(marks, places, found), long)
        roles = roles_of(root)
        self._take(product_of(self.body, self.joined), root.args[0].dtype)
        whole = self._whole_turns(roles)
        if not self.last or not whole:
            found = self._dot_axes(root, roles, self.grid)
            return self.finish(self.sited(marks, places, found), None)
        first = self._dot_axes(root, roles, self.grid, (0, whole))
        self.rows, self.lanes = self.last
        grid: Grid = []
        rest = self._dot_axes(root, roles, grid, (whole, roles.sizes[roles.row]))
        tail = grid, self.sited(marks, places, rest)
        return self.finish(self.sited(marks, places, first), None, [tail])

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
        outputs = self.outputs()
        final: list[Node] = list(outputs)
        for grid, stored in [(self.grid, results), *more]:

            def program(memories: Sequence[Node], stored: Stored = stored) -> list[Node]:
                return self._stores(stored, memories, long)

            final = self.in_grid(grid, final, program)
        hints: dict[str, object] = {"warps": self.warps, "stages": self.stages}
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
        walked = [
            i
            for i, (_, place) in enumerate(results)
            if any(s.name == name for d in place for s in symbols(d))
        ]
        final = [
            m if i in walked else self.store(m, self.value(result, place), place)
            for i, ((result, place), m) in enumerate(zip(results, memories, strict=True))
        ]
        if long is None or not walked:
            return final
        extent = long[1]
        others = [substitute(d, {name: 0}) for i in walked for d in results[i][1]]
        step = self.walk.block if self.walk.is_first else STEP
        block = min(power_of_two(extent), max(1, step // self.held_along(others)))

        def body(var: Node, carried: list[Held]) -> list[Held]:
            step = self.axis("w", extent, block, self.begin(var, block))
            made: list[Held] = []
            for i, memory in zip(walked, carried, strict=True):
                result, place = results[i]
                at = tuple(substitute(d, {name: step.place}) for d in place)
                made.append(Held(self.store(memory.node, self.value(result, at), at)))
            return made

        start = [Held(memories[i]) for i in walked]
        hints = [f"{m.node.attrs.get('name', 'o')}_w" for m in start]
        stored = self.second_walk(-(-extent // block), start, body, hints)
        for i, held in zip(walked, stored, strict=True):
            final[i] = held.node
        return final

    def _spanning(self) -> list[Node]:
        self.joined = products_of(self.body)
        return self.joined

    def _sites(self, root: Node, marks: Index) -> dict[Node, Index]:
        places = super()._sites(root, marks)
        for result in self.body.results:
            if result.shape == root.shape:
                places.setdefault(result, marks)  # it holds rows spread over another axis
        return places

    # ---- axes

    def _dot_axes(
        self, dot: Node, roles: Roles, grid: Grid, part: tuple[int, int] | None = None
    ) -> list[Dim]:
        """Places of the result; `part` is the first row of a grid, and the end of its rows."""
        index: dict[str, Dim] = {}
        for name in (*roles.batch, *roles.panels, *roles.outer):
            index[name] = self.program_axis("b", roles.sizes[name], 1, grid).place
        if roles.row:
            first, end = part or (0, roles.sizes[roles.row])
            block = min(self.rows, max(16, power_of_two(end - first)))
            index[roles.row] = self.program_axis("m", end, block, grid, first=first).place
        extent = roles.sizes[roles.lane]
        block = min(self.lanes, max(16, power_of_two(extent)))
        index[roles.lane] = self.program_axis("n", extent, block, grid).place
        return [index.get(name, 0) for name in result_names(dot)]

    def _whole_turns(self, roles: Roles) -> int:
        """Rows that the tile takes while all processors have one; 0 where that is for all."""
        if not self.last or not roles.row or roles.batch or roles.panels or roles.outer:
            return 0
        height, width = roles.sizes[roles.row], roles.sizes[roles.lane]
        lines = whole_turns(-(-height // self.rows), -(-width // self.lanes), self.gpu)
        left = height - lines * self.rows
        is_cut = left > self.last[0] or (left > 0 and width > self.last[1])
        return lines * self.rows if is_cut else 0

    def _take(self, product: Product, dtype: DType) -> None:
        """The tile that was asked for, that the group names, or that the model puts first."""
        named = first_tile(self.group)
        tile = Tile.parse(named) if named else ranked(product, dtype, self.gpu)[0]
        joined = product.joined
        if self.rows and self.lanes:
            warps = 8 if self.rows * self.lanes * joined >= 128 * 256 else 4
            tile = Tile(self.rows, self.lanes, self.step or tile.step, warps, 3)
        self.rows, self.lanes = tile.rows, tile.lanes
        self.step = self.step or tile.step
        self.warps, self.is_persistent, self.last = tile.warps, tile.persistent, tile.last
        one = (self.rows + joined * self.lanes) * self.step * dtype.bytes
        self.stages = max(1, min(tile.stages, room_of(self.gpu) // one))

    def _space_axes(
        self, root: Node, places: dict[Node, Index], marks: Index
    ) -> tuple[list[Dim], tuple[Expr, int] | None]:
        """Axes of a loop space. Reduced ones are whole in a tile, or walked when they are long."""
        shape = [static(d) for d in root.shape]
        found = [n.attrs["axes"] for n in self._reduces() if n.args[0] is root]
        reduced = {int(a) for axes in found for a in axes}
        whole = product([power_of_two(shape[a]) for a in reduced])
        long: tuple[Expr, int] | None = None
        blocks = [1] * len(shape)
        is_column = bool(reduced) and len(shape) - 1 not in reduced
        is_one = len(reduced) == 1 or in_a_row(sorted(reduced))
        most = MAX_COLUMN if is_column and is_one else MAX_WHOLE
        fits = isinstance(whole, int) and whole <= most
        for axis in reduced:
            blocks[axis] = power_of_two(shape[axis]) if fits else 1
        kept = [a for a in range(len(shape)) if a not in reduced]
        room = max(1, LOOP_TILE // (static(whole) if reduced and fits else 1))
        picks = [n for n in self.body.nodes if n.op == "gather"]
        if not reduced and picks:
            # read element by element: waits are long
            room = ROW_TILE if all(map(_is_of_rows, picks)) else LOOP_TILE
            room = busy(room, prod(shape), 128, self.gpu)
        walked = sorted(reduced) if reduced and not fits else []
        if walked:
            if not is_one or (len(walked) > 1 and not is_column):
                raise CannotTile("several long axes are reduced at once")
            kept_size = prod(shape[a] for a in kept)
            room = busy(COLUMNS, kept_size, 32, self.gpu) if is_column else 1
        turned = not (reduced or picks) and self._is_turned(kept, places, marks)
        room = busy(TURNED * TURNED, prod(shape), LOOP_TILE, self.gpu) if turned else room
        for axis in self._tile_order(kept, places, marks):
            cap = TURNED if turned else room
            blocks[axis] = min(power_of_two(shape[axis]), room, max(cap, 1))
            room //= blocks[axis]
        index: list[Dim] = []
        axes: dict[int, Axis] = {}
        place: dict[int, Dim] = {}
        if walked:
            extents = tuple(shape[a] for a in walked)
            long = symbol("long", 0, prod(extents) - 1), prod(extents)
            place.update(zip(walked, delinearize(long[0], extents), strict=True))
        for axis, extent in enumerate(shape):
            if axis in place:
                index.append(place[axis])
                continue
            if axis in reduced:
                axes[axis] = self.axis("r", extent, max(2, blocks[axis]) if extent > 1 else 1)
            else:
                name = "ijklmnopq"[axis % 9]
                axes[axis] = self.program_axis(name, extent, blocks[axis], self.grid)
            index.append(axes[axis].place if extent > 1 else 0)
        self._bind_reduces(places, marks, axes)
        if long is not None and not is_column:
            (axis,) = reduced
            own = [d for r in self.body.results for d in places[r]]
            self.walk = TWICE if marks[axis] in own else ONCE
            if self.walk.is_first:
                self.keep_tiles(long[1], self.inputs, len(self._reduces()))
        held = 1
        for axis in axes.values():
            held *= axis.block
        self.warps = (
            self.walk.warps if long is not None else min(16, max(1, power_of_two(held // 512)))
        )
        return index, long

    def _is_turned(self, kept: list[int], places: dict[Node, Index], marks: Index) -> bool:
        """Whether the last axis of the space lies across the lines of an array."""
        line = marks[kept[-1]] if kept else None
        held = [places[n] for n in (*self.inputs, *self.body.results) if n in places]
        return any(line in place[:-1] and place[-1] in marks for place in held)

    def _tile_order(self, kept: list[int], places: dict[Node, Index], marks: Index) -> list[int]:
        """Which kept axes a tile should hold first: where memory is read and written along."""
        order: list[int] = kept[-1:]
        for node in (*self.inputs, *self.body.results):
            place = places.get(node)
            if place:
                for i, mark in enumerate(marks):
                    if place[-1] == mark and i in kept and i not in order:
                        order.append(i)
        return [*order, *(a for a in reversed(kept) if a not in order)]


def _is_of_rows(gather: Node) -> bool:
    """Whether what it reads for one index is a line of memory."""
    axes = parse_rule(gather.attrs["rule"]).inputs[0]
    return bool(axes) and not axes[-1].mark


def busy(block: int, elements: int, least: int, gpu: Gpu) -> int:
    """The extent of a tile that leaves enough programs for the machine."""
    while block > least and elements // block < 2 * gpu.processors:
        block //= 2
    return block


__all__ = ["BlockTiler"]
