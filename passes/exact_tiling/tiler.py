"""One fusion group to one kernel at the tile level.

The body of a group is read backwards from its outputs: `value(node, index)` gives the node's value
at an index written in loop symbols, and each op's axis rule says at which index it reads its
operands. One axis, the *tile axis*, is held whole as a tile; the other axes of the output become
grid loops; reduced axes that are not the tile axis become serial loops that carry an accumulator.
"""

from __future__ import annotations

from collections.abc import Sequence

from stack.ir.axes import Index
from stack.ir.dim import Dim, add, mul, product, symbol, symbols
from stack.ir.node import Block, Node
from stack.ir.types import I64, TensorType, TupleType
from stack.passes.exact_tiling.values import Values
from stack.passes.positions.places import places_of
from stack.passes.tiling.frame import CannotTile, static

MAX_TILE = 16384
SPLIT_TILE = 4096


class Tiler(Values):
    """Builds one kernel; schedules of other kinds of groups derive from it."""

    def __init__(self, group: Node) -> None:
        super().__init__(group.blocks[0])
        self.group = group
        for node in (*self.body.params, *self.body.nodes):
            for type_ in _types(node):
                if type_.dtype.kind == "c":
                    raise CannotTile("it computes with complex numbers")
                if static(product(type_.shape)) == 0:
                    raise CannotTile("an array in it is empty")
        arrays = [n for n in self.body.nodes if n.op == "const" and n.tensor.rank]
        self.sources = [*self.body.params, *arrays]
        self.args = [*group.args, *arrays]
        self.inputs = {p: self.memory(f"p{i}", p.tensor) for i, p in enumerate(self.sources)}

    def kernel(self) -> Node:
        """The kernel node of the group."""
        root = self._root()
        index, grid = self._axes(root)
        places = self._places(root, index)
        for result in self.body.results:
            if result not in places:
                raise CannotTile("its outputs do not share one index space")
        names = {name for name, _ in grid}
        outputs = self.outputs()

        def store_all(memories: Sequence[Node]) -> list[Node]:
            return [
                self._store_result(result, memory, places[result], names)
                for result, memory in zip(self.body.results, memories, strict=True)
            ]

        return self.finish(self.in_grid(grid, outputs, store_all))

    def outputs(self) -> list[Node]:
        return [self.memory(f"o{i}", r.tensor) for i, r in enumerate(self.body.results)]

    def finish(self, final: Sequence[Node]) -> Node:
        block = self.b.block([*dict.fromkeys(self.inputs.values()), *self.outputs()], final)
        attrs = {
            "name": str(self.group.attrs.get("name") or "kernel"),
            "level": "tile",
            "ops": self._ops(),
        }
        return Node("kernel", self.args, attrs, self.group.type, (block,))

    def _ops(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(n.op for n in self.body.nodes if n.op != "const"))

    def _reduces(self) -> list[Node]:
        return [n for n in self.body.nodes if n.op == "reduce" and n.attrs["axes"]]

    def _root(self) -> Node:
        """The node whose axes span the group: a reduced operand, or the largest output."""
        candidates = [n.args[0] for n in self._reduces()] or list(self.body.results)
        return max(candidates, key=lambda n: static(n.tensor.size))

    def _axes(self, root: Node) -> tuple[Index, list[tuple[str, int]]]:
        """An index for the root in loop symbols, and the grid axes with their extents."""
        shape = [static(d) for d in root.shape]
        reduced = {axis for n in self._reduces() if n.args[0] is root for axis in n.attrs["axes"]}
        if not shape:
            return (), []
        last = len(shape) - 1
        index: list[Dim] = []
        grid: list[tuple[str, int]] = []
        for axis, extent in enumerate(shape):
            if axis == last:
                index.append(self.tile_axis(extent, last in reduced, grid))
            elif extent == 1:
                index.append(0)
            elif axis in reduced:
                index.append(self.serial(extent))
            else:
                index.append(self.variable("ijklmnopq"[axis % 9], extent))
                grid.append((str(index[-1]), extent))
        return tuple(index), grid

    def tile_axis(self, extent: int, is_reduced: bool, grid: list[tuple[str, int]]) -> Dim:
        """The tile axis: whole when it is reduced, else cut into grid steps where it is long."""
        size = extent
        if not is_reduced and extent > MAX_TILE:
            size = next((d for d in range(SPLIT_TILE, 255, -1) if extent % d == 0), extent)
        self.tile = size
        iota = self.b.iota(axis=0, type=TensorType(I64, (size,), "tile"))
        self.nodes["t"] = iota
        self.tile_symbols.add("t")
        self.tile_dim = symbol("t", 0, size - 1)
        if size == extent:
            return self.tile_dim
        step = self.variable("s", extent // size)
        grid.append((str(step), extent // size))
        return add(mul(step, size), self.tile_dim)

    def _places(self, root: Node, index: Index) -> dict[Node, Index]:
        self.places = places_of(self.body, root, index)
        return self.places

    def _store_result(self, result: Node, memory: Node, index: Index, grid: set[str]) -> Node:
        """Store one output; axes of it that are neither grid nor tile get serial loops."""
        loose = sorted(
            s.name
            for s in {s for d in index for s in symbols(d)}
            if s.name not in grid and s.name not in self.tile_symbols
        )
        return self._store_in(loose, result, memory, index)

    def _store_in(self, loose: list[str], result: Node, memory: Node, index: Index) -> Node:
        if loose:
            var = self.nodes[loose[0]]
            name = f"{memory.attrs['name']}_{loose[0]}"
            carried = Node("var", (), {"name": name}, memory.type)
            stored = self._store_in(loose[1:], result, carried, index)
            return self.loop("serial", [memory], Block((var, carried), [stored]))[0]
        value = self.narrow(self.value(result, index, None), result.dtype)
        return self.store(memory, value, index)

    def store(self, memory: Node, value: Node, index: Index) -> Node:
        uses_tile = any(self.is_tile(d) for d in index)
        if uses_tile and not value.tensor.rank:
            value = self.splat(value)
        place = self.block_index(index) if uses_tile else [self.number(d) for d in index]
        if place is None:
            place = [self.as_tile(self.number(d)) for d in index]
        return self.b.store(memory, value, *place)


def _types(node: Node) -> tuple[TensorType, ...]:
    return node.type.items if isinstance(node.type, TupleType) else (node.type,)
