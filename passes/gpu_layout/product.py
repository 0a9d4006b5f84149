"""Products of tiles: operands in shared memory, sums in registers.

The matrix instruction is m16n8k16 of 16-bit floats with sums in f32 (PTX ISA, "mma.m16n8k16"). As
shares, with lane = 4 g + t: sums have rows g and columns t by pairs; the left operand has the same
rows, and along the depth what the sums have along the columns; the right operand has columns g. So
sums of one product are the left operand of the next as they lie.
"""

from __future__ import annotations

from stack.ir.axes import parse_rule
from stack.ir.builder import constant
from stack.ir.node import Block, Node
from stack.ir.types import I32, TensorType
from stack.ir.warp_ops import WARP
from stack.passes.gpu_layout.reduce import Reduce
from stack.passes.gpu_layout.runs import size_of
from stack.passes.gpu_layout.share import Held, Layout, Share, share_of

ROWS, COLUMNS, DEPTH = 16, 8, 16  # of one instruction


class Sides:
    """The operands of a product, rows first, and its sizes.

    Attributes:
        left: the operand that has the rows.
        right: the one that has the columns.
        is_turned: of both, whether the depth comes first in the left, last in the right.
    """

    def __init__(self, dot: Node) -> None:
        rule = parse_rule(dot.attrs["rule"])
        names = [[a.names[0] for a in side] for side in rule.inputs]
        rows, columns = (a.names[0] for a in rule.outputs[0])
        first = 0 if rows in names[0] else 1
        self.left, self.right = dot.args[first], dot.args[1 - first]
        self.is_turned = names[first][0] != rows, names[1 - first][1] != columns
        self.rows, self.columns = (size_of(dot.tensor, i) for i in range(2))
        self.depth = size_of(self.left.tensor, 0 if self.is_turned[0] else 1)

    def is_for_mma(self, dot: Node) -> bool:
        """Whether matrix instructions do it."""
        kinds = {self.left.dtype.name, self.right.dtype.name}
        fits = not (self.rows % ROWS or self.columns % COLUMNS or self.depth % DEPTH)
        return fits and len(kinds) == 1 and kinds <= {"f16", "bf16"} and dot.dtype.name == "f32"


def sums_layout(rows: int, columns: int, warps: int) -> Layout:
    """Where the sums of matrix instructions lie: warps take rows, what is over takes columns."""
    down = min(warps, rows // ROWS)
    across = min(warps // down, columns // COLUMNS)
    return (
        share_of((8, 4), (2, 0), (down, WARP), (rows // ROWS // down, 0)),
        share_of((2, 0), (4, 1), (columns // COLUMNS // across, 0), (across, WARP * down)),
    )


def depth_share(depth: int) -> Share:
    """Where the places along the depth lie in both operands."""
    return share_of((2, 0), (4, 1), (depth // COLUMNS, 0))


def right_share(columns: Share) -> Share:
    """The columns of the right operand for those of the sums: their pairs and lanes are lanes."""
    return share_of((8, 4), *((d.count, d.stride) for d in columns.digits[2:]))


class Product(Reduce):
    """Products of two tiles."""

    def dot(self, node: Node, layout: Layout, start: Held | None = None) -> Held:
        """The sums of a product in a layout, added to what they start from."""
        sides = Sides(node)
        if start is None:
            start = self.broadcast(Held(constant(0, node.dtype)), (), layout)
        if sides.is_for_mma(node) and layout == sums_layout(sides.rows, sides.columns, self.warps):
            return self._by_mma(sides, layout, start)
        return self._by_fma(node, sides, layout, start)

    def _by_mma(self, sides: Sides, layout: Layout, start: Held) -> Held:
        along = depth_share(sides.depth)
        left = self._operand(sides.left, (layout[0], along), sides.is_turned[0])
        right = self._operand(sides.right, (along, right_share(layout[1])), sides.is_turned[1])
        return Held(self.b.mma_sync(left.node, right.node, start.node), layout)

    def _operand(self, node: Node, layout: Layout, is_turned: bool) -> Held:
        """An operand, the depth where the instruction wants it."""
        if not is_turned:
            return self.at(node, layout)
        return self.turned(self.at(node, layout[::-1]), (1, 0))

    def _by_fma(self, node: Node, sides: Sides, layout: Layout, start: Held) -> Held:
        """One product after another for each element, operands from shared memory."""
        memories = [self._in_shared(side) for side in (sides.left, sides.right)]
        type_ = self.type_of(node.dtype, layout)
        self.count += 1
        var = Node("var", (), {"name": f"d_{self.count}", "extent": sides.depth}, TensorType(I32, ()))
        sums = Node("var", (), {"name": f"sums_{self.count}"}, type_)
        parts: list[Node] = []
        for axis, (memory, turned) in enumerate(zip(memories, sides.is_turned, strict=True)):
            share = (layout[axis],)
            own = self.places(layout[axis])
            depth = self.broadcast(Held(var), (), share)
            is_depth_first = (axis == 1) != turned
            index = [depth.node, own.node] if is_depth_first else [own.node, depth.node]
            kind = self.type_of(memory.dtype, share)
            attrs = self._vector(memory.dtype, layout[axis], [4]) if is_depth_first else {}
            read = Held(self.b.op("load", [memory, *index], attrs, hint=kind), share)
            if read.dtype != node.dtype:
                wide = read.node.tensor.with_dtype(node.dtype)
                read = Held(self.b.cast(read.node, type=wide), share)
            parts.append(self.along(read, axis, layout).node)
        block = Block((var, sums), (self.b.fma(*parts, sums),))
        return Held(self.b.op("loop", [start.node], {"kind": "serial"}, (block,)), layout)

    def _in_shared(self, node: Node) -> Node:
        home = self.known.get(node)
        return self.kept(home if home is not None else self.at(node, self.layout_of(node)))
