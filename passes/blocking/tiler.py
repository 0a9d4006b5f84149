"""One fusion group to one kernel of blocks: which axes programs share, which a tile holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

from stack.ir.axes import Index
from stack.ir.dim import Dim, Expr, substitute, symbol, symbols
from stack.ir.node import Node
from stack.ir.relation import delinearize
from stack.ir.types import DType, TensorType, TupleType
from stack.passes.blocking.frame import Axis, Held, index_type
from stack.passes.blocking.joined import products_of
from stack.passes.blocking.product_policy import ProductPolicy
from stack.passes.blocking.row_policy import (
    LETTERS,
    REDUCED,
    RowPolicy,
    RowSpace,
    is_walked,
    letter,
)
from stack.passes.blocking.tile_choice import Product, Tile, product_of, whole_turns
from stack.passes.blocking.values import BlockValues
from stack.passes.positions.places import places_of
from stack.passes.tiling.contraction import Roles, result_names, roles_of
from stack.passes.tiling.frame import CannotTile, power_of_two, static
from stack.target import Target, as_gpu

STEP = 2048  # elements of a long row in one step
Grid = list[tuple[Node, int]]  # indices of programs, and how many there are
Stored = Sequence[tuple[Node, Index]]  # results and their places


class BlockTiler(BlockValues):
    """Builds the kernel of a loop, reduction or gemm group."""

    def __init__(self, group: Node, target: Target | None = None) -> None:
        body = group.blocks[0]
        sizes = [static(t.size) for n in (*body.params, *body.nodes) for t in types_of(n)]
        super().__init__(body, index_type(sizes))
        self.group = group
        self.gpu = as_gpu(target)
        self.rows = self.lanes = 0
        self.order = ("m", "n")  # of the programs of a product
        self.check(sizes)
        arrays = [n for n in body.nodes if n.op == "const" and n.tensor.rank]
        self.take(body.params, arrays)
        self.args = [*group.args, *arrays]
        self.grid: list[tuple[Node, int]] = []
        self.warps = 4
        self.stages = 2
        self.is_persistent = False
        self.streams_out = not any(n.op == "dot" for n in body.nodes)
        self.last: tuple[int, int] | None = None  # of tiles for rows behind the whole turns

    def check(self, sizes: Sequence[int]) -> None:
        if 0 in sizes:
            raise CannotTile("an array in it is empty")
        for node in (*self.body.params, *self.body.nodes):
            if any(t.dtype.kind == "c" for t in types_of(node)):
                raise CannotTile("it computes with complex numbers")

    def take(self, params: Sequence[Node], arrays: Sequence[Node] = ()) -> None:
        """Inputs in memory: parameters, then tables."""
        for i, p in enumerate((*params, *arrays)):
            self.inputs[p] = self.memory(f"p{i}", p.tensor)
            if i in self.group.attrs.get("padded", ()):
                self.padded.add(self.inputs[p])

    def memory(self, name: str, type_: TensorType) -> Node:
        return Node("param", (), {"name": name}, TensorType(type_.dtype, type_.shape, "global"))

    def outputs(self) -> list[Node]:
        return [self.memory(f"o{i}", t) for i, t in enumerate(types_of(self.group))]

    # ---- the kernel

    def kernel(self) -> Node:
        """The kernel node of the group. Raises CannotTile."""
        root, marks, places = self._root()

        def placed(found: Sequence[Dim]) -> Stored:
            values: dict[str, Dim] = {str(m): d for m, d in zip(marks, found, strict=True)}
            return [(r, tuple(substitute(d, values) for d in places[r])) for r in self.body.results]

        if root.op != "dot":
            found, long = self._space_axes(root, places, marks)
            return self.finish(placed(found), long)
        roles = roles_of(root)
        self._take(product_of(self.body, self.joined), root.args[0].dtype)
        whole = self._whole_turns(roles)
        if not self.last or not whole:
            return self.finish(placed(self._dot_axes(root, roles, self.grid)), None)
        first = placed(self._dot_axes(root, roles, self.grid, (0, whole)))
        self.rows, self.lanes = self.last
        grid: Grid = []
        rest = placed(self._dot_axes(root, roles, grid, (whole, roles.sizes[roles.row])))
        return self.finish(first, None, [(grid, rest)])

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
        block = self.b.block([*self._parameters(), *outputs], final)
        attrs: dict[str, object] = {
            "name": str(self.group.attrs.get("name") or "kernel"),
            "level": "tile",
            "ops": self._ops(),
            "warps": self.warps,
            "stages": self.stages,
        }
        if self.is_persistent and prod(count for _, count in self.grid) > self.gpu.processors:
            attrs["programs"] = self.gpu.processors
        return Node("kernel", self.args, attrs, self.group.type, (block,))

    def _parameters(self) -> list[Node]:
        return list(self.inputs.values())

    def _ops(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(n.op for n in self.body.nodes if n.op != "const"))

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

    def _reduces(self) -> list[Node]:
        return [n for n in self.body.nodes if n.op == "reduce" and n.attrs["axes"]]

    def _root(self) -> tuple[Node, Index, dict[Node, Index]]:
        """The node whose axes span the group, a symbol for each axis, and where values sit."""
        self.joined = products_of(self.body)
        candidates = self.joined or [n.args[0] for n in self._reduces()] or list(self.body.results)
        most = max(static(n.tensor.size) for n in candidates)
        for root in dict.fromkeys(n for n in candidates if static(n.tensor.size) == most):
            shape = [static(s) for s in root.shape]
            marks = tuple(symbol(f"d{i}", 0, max(s - 1, 0)) for i, s in enumerate(shape))
            places = places_of(self.body, root, marks)
            for result in self.body.results:
                if result.shape == root.shape:
                    places.setdefault(result, marks)  # it holds rows spread over another axis
            if all(r in places for r in self.body.results):
                return root, marks, places
        raise CannotTile("its outputs do not share one index space")

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
            elif roles.row:
                first, end = part or (0, roles.sizes[roles.row])
                block = min(self.rows, max(16, power_of_two(end - first)))
                index[roles.row] = self.program_axis("m", end, block, grid, first=first).place
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
        """Follow the schedule that the group names, or the one that the model puts first."""
        schedule = ProductPolicy(product, dtype, self.gpu).of(self.group)
        tile = Tile.of(schedule)
        named = [s.axis for s in schedule.splits if s.axis in "mn"]
        self.order = tuple(dict.fromkeys((*named, "m", "n")))
        self.rows, self.lanes, self.step = tile.rows, tile.lanes, tile.step
        self.warps, self.stages = tile.warps, tile.stages
        self.is_persistent, self.last = tile.persistent, tile.last

    def _space_axes(
        self, root: Node, places: dict[Node, Index], marks: Index
    ) -> tuple[list[Dim], tuple[Expr, int] | None]:
        """Axes of a loop space. Reduced ones are whole in a tile, or walked when they are long."""
        space = self._row_space(root, places, marks)
        schedule = RowPolicy(space, self.gpu).of(self.group)
        shape, reduced = space.shape, space.reduced
        long: tuple[Expr, int] | None = None
        index: list[Dim] = []
        axes: dict[int, Axis] = {}
        place: dict[int, Dim] = {}
        if is_walked(schedule):
            extents = tuple(shape[a] for a in reduced)
            long = symbol("long", 0, prod(extents) - 1), prod(extents)
            place.update(zip(reduced, delinearize(long[0], extents), strict=True))
        for axis, extent in enumerate(shape):
            if axis in place:
                index.append(place[axis])
                continue
            if axis in reduced:
                block = max(2, power_of_two(extent)) if extent > 1 else 1
                axes[axis] = self.axis("r", extent, block)
            else:
                name, block = LETTERS[axis % len(LETTERS)], schedule.block(letter(axis), 1)
                axes[axis] = self.program_axis(name, extent, block, self.grid)
            index.append(axes[axis].place if extent > 1 else 0)
        self._bind_reduces(places, marks, axes)
        self.warps = schedule.warps
        if long is not None:
            block = schedule.block(REDUCED) * prod(a.block for a in axes.values())
            hints = {"warps": schedule.warps, "ahead": schedule.stages}
            self.walk = replace(space.walk, block=block, **hints)
            if self.walk.is_first:
                self.keep_tiles(long[1], self.inputs, len(self._reduces()))
        return index, long

    def _bind_reduces(self, places: dict[Node, Index], marks: Index, axes: dict[int, Axis]) -> None:
        """Reductions over the row of the space use its axis."""
        known = {str(m): i for i, m in enumerate(marks)}
        for node in self._reduces():
            place = places.get(node.args[0])
            if place is None:
                continue
            for axis in map(int, node.attrs["axes"]):
                at = known.get(str(place[axis]))
                if at is not None and at in axes and axes[at].block >= axes[at].extent:
                    if axes[at].is_tile:
                        self.reduced_axis[node, axis] = axes[at]

    def row_policy(self) -> RowPolicy:
        """What schedules the group, where no product does. Raises CannotTile."""
        root, marks, places = self._root()
        return RowPolicy(self._row_space(root, places, marks), self.gpu)

    def _row_space(self, root: Node, places: dict[Node, Index], marks: Index) -> RowSpace:
        found = [n.attrs["axes"] for n in self._reduces() if n.args[0] is root]
        reduced = sorted({int(a) for axes in found for a in axes})
        results = self.body.results
        picks = tuple(n for n in self.body.nodes if n.op == "gather")
        arrays = (*self.inputs, *results)
        return RowSpace(root, marks, places, arrays, results, tuple(reduced), picks)


def types_of(node: Node) -> tuple[TensorType, ...]:
    """Types of all results of a node."""
    return node.type.items if isinstance(node.type, TupleType) else (node.type,)


__all__ = ["BlockTiler", "types_of"]
