"""Products inside of a stream on a CPU: rows of the result are lanes, keys are rows of a tile.

Every value of a stream is held with the stream's rows along the vector lanes, so that maxima, sums
and corrections are plain vector operations. A product s = q k' is then computed transposed: tiles
of some keys by all lanes, with q packed once and k read in place, one element for all lanes. The
product p v is the same with v read in place and p as it was stored.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from stack.ir import ops
from stack.ir.axes import Index, Rule, parse_rule
from stack.ir.builder import constant
from stack.ir.contraction import product_types
from stack.ir.dim import Dim, add, minimum, mul, substitute, symbols
from stack.ir.node import Node
from stack.ir.traits import converts, unconverted
from stack.ir.types import F32, I64, TensorType
from stack.passes.blocking.frame import Axis, NamedTile
from stack.passes.cpu_loops.pack import PAIR
from stack.passes.exact_tiling.gemm import pick_rows
from stack.passes.exact_tiling.mma import mma_rows
from stack.passes.exact_tiling.stream_memory import StreamMemory
from stack.passes.exact_tiling.tiler import names_in
from stack.passes.positions.affine import slope
from stack.passes.tiling.frame import CannotTile, static, wide
from stack.target import Cpu, Mma

# an index of an operand at a key and a column
Place = Callable[[Dim, Dim], Index]
# first key, keys, first column, columns: a block, and the rule of its product with lanes
Tile = Callable[[Dim, int, Dim, int], tuple[Node, str]]


class StreamProducts(StreamMemory):
    """Blocks in memory, and products of them.

    Attributes:
        first: the first key of the panel.
        size: keys of the panel.
        key: the keys of the panel, inside of a sweep over it.
        begin: the first row of the program.
    """

    cpu: Cpu
    begin: Dim = 0
    first: Dim = 0
    size = 0
    key: Axis

    def __init__(self, group: Node) -> None:
        super().__init__(group)
        self.enter()
        self.packed: dict[tuple[Node, Index], Node] = {}
        self.scores: dict[tuple[Node, Index], Node] = {}
        self.panels: dict[tuple[Node, Index], Node] = {}

    def value(self, node: Node, index: Index, guard: NamedTile | None = None) -> NamedTile:
        """As of all tilers; what is known may change, and is not remembered."""
        if node in self.known:
            return self.known[node](index)
        return super().value(node, index, guard)

    def in_tiles(
        self,
        extent: int,
        memory: Node,
        body: Callable[[Node, Dim, int], Node],
        again: bool,
        mma: Mma | None = None,
    ) -> Node:
        """Memory after tiles of rows; where `again`, some rows may be computed a second time.

        `mma`: what the products go by.
        """
        if mma is not None and mma.rows > 1:
            rows = mma_rows(mma, extent)
        else:
            rows = pick_rows(extent, self.lane.block, F32, self.cpu)
        if not again and extent % rows:
            rows = max(r for r in range(1, rows + 1) if extent % r == 0 or r == rows)
        count, rest = divmod(extent, rows)
        if again and rest:
            count, rest = count + 1, 0
        step = self.loop_axis("u", count)
        begin: Dim = mul(step.place, rows) if count > 1 else 0
        if again and extent % rows:
            begin = minimum(begin, extent - rows)
        if count > 1:
            memory = self.over(step, memory, lambda held: body(held, begin, rows))
        else:
            memory = body(memory, 0, rows)
        return body(memory, count * rows, rest) if rest else memory

    # ---- operands

    def mma(self, dot: Node, rows: int, depth: int) -> Mma | None:
        """The instruction for so many rows of a product with the lanes; any other rows go, too."""
        types, lanes = product_types(dot), self.lane.block
        if self.cpu.mma(types, 1, lanes, depth) is None:
            return None
        return next(
            m for m in self.cpu.mmas(types) if m.rows <= rows and m.divides(m.rows, lanes, depth)
        )

    def depth_of(self, dot: Node, extent: int) -> int:
        """The depth of a product of keys, with zeros where tiles of an instruction take more.

        As it is, where half of a tile and more would be zeros: vectors take less than that.
        """
        depths = (m.depth for m in self.cpu.mmas(product_types(dot)) if m.rows > 1)
        most = next(depths, 1)
        return -(-extent // most) * most if 2 * extent >= most else extent

    def block(self, node: Node, index: Index, moving: dict[str, int]) -> tuple[Node, list[str]]:
        """What an operand is along some symbols, as a block in memory, and the names of its axes.

        Raises CannotTile where it is computed, or not a plain block.
        """
        while node not in self.inputs:
            if converts(node) and node.dtype == wide(node.args[0].dtype):
                node = node.args[0]
            elif ops.is_view(node):
                (index,) = ops.pull(node, index)
                node = node.args[0]
            else:
                raise CannotTile(f"an operand of a product is computed by {node.op}")
        return self.part(self.inputs[node], index, moving)

    def part(self, memory: Node, index: Index, moving: dict[str, int]) -> tuple[Node, list[str]]:
        """`block` of memory itself."""
        sizes: list[int] = []
        names: list[str] = []
        start: list[Node] = []
        for axis, dim in enumerate(index):
            here = [s.name for s in symbols(dim) if s.name in moving]
            if len(here) > 1 or (here and slope(dim, here[0]) != 1):
                raise CannotTile("an operand of a product is read at a computed index")
            names.append(here[0] if here else f"x{axis}")
            sizes.append(moving[here[0]] if here else 1)
            origin = {name: self.begin if name == self.lane.name else 0 for name in here}
            start.append(self.number(substitute(dim, origin)).node)
        if sorted(n for n in names if n in moving) != sorted(moving):
            raise CannotTile("an operand of a product does not have its axes")
        first = min(i for i, name in enumerate(names) if name in moving)
        type_ = TensorType(memory.dtype, tuple(sizes[first:]), "tile")
        return self.b.load(memory, *start, type=type_), names[first:]

    def put_transposed(self, block: Node, names: Sequence[str], order: Sequence[str]) -> Node:
        """A block with just these axes, in this order."""
        kept = [n for n in names if n in order]
        sizes = dict(zip(names, block.shape, strict=True))
        if len(kept) != len(names):
            shape = tuple(sizes[n] for n in kept)
            block = self.b.reshape(block, type=block.tensor.with_shape(shape))
        if kept != list(order):
            block = self.b.transpose(block, perm=tuple(kept.index(n) for n in order))
        return block

    def _rows(self, node: Node, index: Index, along: Axis, depth: int, mma: Mma | None) -> Node:
        """The operand that has the lanes, packed: its contracted axis, then lanes."""
        name, extent = along.name, along.extent
        key = (node, tuple(substitute(d, {name: 0}) for d in index))
        if key not in self.packed:
            moving = {name: extent, self.lane.name: self.lane.block}
            try:
                found = self.put_transposed(*self.block(node, index, moving), tuple(moving))
                if mma is None:
                    memory = self.local("rows", found.shape, self.program)
                    self.packed[key] = self.whole(memory, self.as_(found, wide(found.dtype)))
            except CannotTile:
                memory = self.local("rows", tuple(moving.values()), self.program)
                step = self.loop_axis("d", extent)
                at = tuple(substitute(d, {name: step.place}) for d in index)
                self.packed[key] = self.over(
                    step, memory, lambda m: self.keep(m, self.value(node, at), step.place)
                )
                found = self.as_(self.all_of(self.packed[key]), node.dtype)
            if mma is not None:
                if depth != extent:
                    lines = self.with_zeros(found, (depth, self.lane.block), self.program)
                    found = self.all_of(lines)
                self.packed[key] = self.paired(found, mma.group, self.program)
        return self.packed[key]

    def load(
        self, memory: Node, index: Index, guard: NamedTile | None, raw: bool = False
    ) -> NamedTile:
        """Elements that lie apart for neighbouring lanes are turned, a panel at a time."""
        lanes = [i for i, d in enumerate(index) if self.tile_axes(d)]
        along = self.size and self.key.name in names_in(index)
        if not along or not lanes or lanes == [len(index) - 1] or guard is not None:
            return super().load(memory, index, guard, raw)
        if memory.dtype.kind != "f":
            raise CannotTile(f"an array of {memory.dtype} is read with its rows apart in memory")
        name, lane = self.key.name, self.lane
        base = tuple(substitute(d, {name: 0}) for d in index)
        if (memory, base) not in self.panels:
            zero = constant(0, I64)
            found, names = self.part(memory, index, {name: self.size, lane.name: lane.block})
            found = self.as_(found, wide(found.dtype))
            panel = self.local("panel", (self.size, lane.block), self.iteration, found.dtype)
            transposed = self.put_transposed(found, names, (name, lane.name))
            self.panels[memory, base] = self.b.store(panel, transposed, zero, zero)
        return self.line(self.panels[memory, base], self.key.place)

    # ---- products

    def _dot(self, node: Node, index: Index, guard: NamedTile | None) -> NamedTile:
        """A product at one key of the panel, in all lanes."""
        own = {a.names[0]: d for a, d in zip(self._rule(node).outputs[0], index, strict=True)}
        along = [n for n, d in own.items() if self.key.name in names_in([d])]
        across = [n for n, d in own.items() if self.tile_axes(d)]
        if len(along) != 1 or len(across) != 1 or along == across:
            raise CannotTile("a product inside of the stream is not one of its rows and keys")
        begin = add(own[along[0]], mul(self.key.place, -1))
        if begin != self.first:
            raise CannotTile("a product inside of the stream is read at a computed key")
        base = tuple(substitute(d, {self.key.name: 0}) for d in index)
        if (node, base) not in self.scores:
            self.scores[node, base] = self._product(node, {**own, along[0]: begin}, along[0])
        return self.line(self.scores[node, base], self.key.place)

    def _rule(self, node: Node) -> Rule:
        rule = parse_rule(node.attrs["rule"])
        if len(rule.reduced) != 1:
            raise CannotTile("a product inside of the stream contracts several axes")
        return rule

    def _product(self, node: Node, place: dict[str, Dim], along: str) -> Node:
        """Memory with a product for the keys of the panel."""
        rule = self._rule(node)
        (summed,) = rule.reduced
        names = [[a.names[0] for a in operand] for operand in rule.inputs]
        left = 0 if along in names[0] else 1
        if along in names[1 - left] or any(summed not in n for n in names):
            raise CannotTile("a product inside of the stream has its keys in both operands")
        extent = static(node.args[0].shape[names[0].index(summed)])
        step = self.loop_axis("d", extent)
        inside = {**place, summed: step.place}
        depth = self.depth_of(node, extent)
        mma = self.mma(node, self.size, depth)
        if mma is None or mma.rows == 1:
            depth, mma = extent, self.mma(node, self.size, extent)
        index = tuple(inside[n] for n in names[1 - left])
        right = self._rows(node.args[1 - left], index, step, depth, mma)
        memory = self.local("scores", (self.size, self.lane.block), self.iteration)

        def at(key: Dim, column: Dim) -> Index:
            found = {**place, along: add(self.first, key), summed: column}
            return tuple(found[n] for n in names[left])

        tile = self.keys(node.args[left], at, extent, 0, mma)

        def body(held: Node, begin: Dim, rows: int) -> Node:
            made = self.multiply(*tile(begin, rows, 0, depth), right)
            return self.b.store(held, made, self.number(begin).node, constant(0, I64))

        return self.in_tiles(self.size, memory, body, again=True, mma=mma)

    def keys(self, node: Node, at: Place, width: int, kept: int, mma: Mma | None) -> Tile:
        """Tiles of the operand with the panel's keys (axis 0) and columns (1), `at` an index.

        The function takes first key, keys, first column, columns, and returns a block, with the
        rule of its product with lanes that keeps axis `kept`.

        Read in place where the panel is one run of 32-bit memory, else from a copy that is: rows
        that are far apart would push each other out of the first-level cache.
        """
        if mma is not None:
            return self.pairs(node, at, width, kept, mma)
        panel: Node | None = None
        key, column = self.loop_axis("k", self.size), self.loop_axis("e", width)
        names = (key.name, column.name)
        moving = dict(zip(names, (self.size, width), strict=True))
        block, axes = self.block(node, at(key.place, column.place), moving)
        if block.dtype != F32 or not _is_run(block, axes, names[0]):
            memory = self.local("panel", (self.size, width), self.iteration)
            panel = self.whole(memory, self.as_(self.put_transposed(block, axes, names), F32))

        def tile(first: Dim, keys: int, start: Dim, columns: int) -> tuple[Node, str]:
            if panel is None:
                index = at(add(first, key.place), add(start, column.place))
                found, axes = self.block(node, index, {names[0]: keys, names[1]: columns})
            else:
                type_ = TensorType(F32, (keys, columns), "tile")
                place = [self.number(first).node, self.number(start).node]
                found, axes = self.b.load(panel, *place, type=type_), names
            lane = self.lane.name
            return found, f"{' '.join(axes)}, {names[1 - kept]} {lane} -> {names[kept]} {lane}"

        return tile

    def pairs(self, node: Node, at: Place, width: int, kept: int, mma: Mma) -> Tile:
        """`keys` for an instruction: what is kept, then groups along the other axis.

        Read in place where these lie together.
        """
        key, column = self.loop_axis("k", self.size), self.loop_axis("e", width)
        names = key.name, column.name
        own, other, lane = names[kept], names[1 - kept], self.lane.name
        rule = f"{own} {other} {PAIR}, {other} {lane} {PAIR} -> {own} {lane}"

        def grouped(block: Node) -> Node:
            rows, depth = map(static, block.shape)
            shape = (rows, depth // mma.group, mma.group)
            return self.b.reshape(block, type=block.tensor.with_shape(shape))

        def block(first: Dim, keys: int, start: Dim, columns: int) -> tuple[Node, list[str]]:
            index = at(add(first, key.place), add(start, column.place))
            return self.block(node, index, {names[0]: keys, names[1]: columns})

        whole, axes = block(0, self.size, 0, width)
        if kept == 0 and width % mma.depth:
            whole = self.put_transposed(whole, axes, names)
            depth = -(-width // mma.depth) * mma.depth
            whole = self.all_of(self.with_zeros(whole, (self.size, depth), self.iteration))
            axes = list(names)
        elif axes[-1] == other:

            def in_place(first: Dim, keys: int, start: Dim, columns: int) -> tuple[Node, str]:
                found = self.put_transposed(*block(first, keys, start, columns), (own, other))
                return grouped(found), rule

            return in_place
        whole = self.put_transposed(whole, axes, names)
        if kept == 1:
            paired = self.paired(whole, mma.group, self.iteration)
            whole = self.b.transpose(self.all_of(paired), perm=(1, 0, 2))
        else:
            whole = grouped(whole)
        panel = self.whole(self.local("panel", whole.shape, self.iteration, whole.dtype), whole)

        def copied(first: Dim, keys: int, start: Dim, columns: int) -> tuple[Node, str]:
            rows = (keys, columns)[kept]
            type_ = TensorType(panel.dtype, (rows, *panel.shape[1:]), "tile")
            zero = constant(0, I64)
            begin = self.number((first, start)[kept]).node
            return self.b.load(panel, begin, zero, zero, type=type_), rule

        return copied

    def multiply(self, block: Node, rule: str, lanes: Node) -> Node:
        """A tile: sums over an axis of a block times the rows of `lanes`."""
        right = self.all_of(lanes)
        return self.b.op("dot", [block, right], {"rule": rule}, hint=TensorType(F32, (), "value"))


def _is_run(block: Node, axes: Sequence[str], key: str) -> bool:
    """Whether rows of a block follow each other in memory."""
    load = unconverted(block)
    inner = len(axes) - axes.index(key) - 1
    return block.shape[len(axes) - inner :] == load.args[0].shape[-inner:] if inner else True
