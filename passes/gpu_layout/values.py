"""Values of a block on its threads: places, broadcasts, elementwise ops."""

from __future__ import annotations

from collections.abc import Sequence

from stack.ir import ops
from stack.ir.builder import constant
from stack.ir.node import Block, Node
from stack.ir.types import I32, DType, TensorType
from stack.ir.warp_ops import WARP
from stack.passes.gpu_layout.classes import is_tile
from stack.passes.gpu_layout.share import Digit, Layout, NamedTile, Share
from stack.passes.tiling.loops import Rebuilt


class Values(Rebuilt):
    """What holds the values of one kernel.

    Attributes:
        warps: of a block of threads.
        known: tiles and scalars where they were made.
        moved: tiles in other layouts.
    """

    def __init__(self, old: Block, warps: int) -> None:
        super().__init__(old)
        self.warps = warps
        self.known: dict[Node, NamedTile] = {}
        self.moved: dict[tuple[Node, Layout], NamedTile] = {}

    def converted(self, value: NamedTile, layout: Layout) -> NamedTile:
        raise NotImplementedError

    # ---- where values are

    def at(self, node: Node, layout: Layout) -> NamedTile:
        """A tile in a layout: where it was made, computed again if that costs nothing, or moved."""
        pending = [(node, layout)]
        while pending:  # operands first: how deep a kernel is, is up to the program
            asked = pending[-1]
            home = self.known.get(asked[0])
            if self._found(*asked) is None:
                needed = self._operands(*asked) if home is None else []
                if missing := [o for o in needed if is_tile(o[0]) and self._found(*o) is None]:
                    pending += reversed(missing)
                    continue
                made = self.computed(*asked) if home is None else self.converted(home, asked[1])
                self.note(asked[0], made.node)
                self.moved[asked] = made
            pending.pop()
        found = self._found(node, layout)
        assert found is not None
        return found

    def _found(self, node: Node, layout: Layout) -> NamedTile | None:
        """A tile that is there in a layout."""
        home = self.known.get(node)
        return home if home and home.layout == layout else self.moved.get((node, layout))

    def _operands(self, node: Node, layout: Layout) -> list[tuple[Node, Layout]]:
        """What a tile is computed of, each in its layout."""
        if node.op == "broadcast":
            axes: Sequence[int] = node.attrs["axes"]
            return [(node.args[0], tuple(layout[a] for a in axes))]
        return [(a, layout) for a in node.args]

    def scalar(self, node: Node) -> NamedTile:
        """A number: one of the whole block, or one in each thread."""
        if node in self.known:
            return self.known[node]
        return NamedTile(node)

    def operand(self, node: Node, layout: Layout) -> NamedTile:
        """A tile in a layout, or a number."""
        return self.at(node, layout) if is_tile(node) else self.scalar(node)

    def type_of(self, dtype: DType, layout: Layout) -> TensorType:
        """How a tile in a layout is held."""
        shape = (self.warps, WARP, *(s.registers for s in layout))
        return TensorType(dtype, shape, "tile")

    # ---- values

    def computed(self, node: Node, layout: Layout) -> NamedTile:
        """A tile of places, numbers and other tiles, in a layout."""
        if node.op == "iota":
            axis = int(node.attrs["axis"])
            return self.along(self.places(layout[axis], node.dtype), axis, layout)
        args = [self.operand(*o) for o in self._operands(node, layout)]
        if node.op == "broadcast":
            return self.broadcast(args[0], node.attrs["axes"], layout)
        return self.applied(node, args, layout)

    def applied(self, node: Node, args: Sequence[NamedTile], layout: Layout) -> NamedTile:
        """An elementwise op of values of one layout and numbers."""
        nodes = [
            a.node if a.is_uniform or a.layout == layout else self.broadcast(a, (), layout).node
            for a in args
        ]
        if all(a.is_uniform for a in args):
            made = Node(node.op, nodes, node.attrs, node.tensor)
            return NamedTile(made) if not layout else self.broadcast(NamedTile(made), (), layout)
        type_ = self.type_of(node.dtype, layout)
        return NamedTile(self.b.op(node.op, nodes, node.attrs, hint=type_), layout)

    def apply(self, op: str, *args: NamedTile | int) -> NamedTile:
        """An elementwise op of values in each thread that all lie alike."""
        first = next(a for a in args if isinstance(a, NamedTile) and not a.is_uniform)
        nodes = [a.node if isinstance(a, NamedTile) else constant(a, first.dtype) for a in args]
        return NamedTile(self.b.op(op, nodes), first.layout)

    def broadcast(self, value: NamedTile, axes: Sequence[int], layout: Layout) -> NamedTile:
        """A value repeated along the axes of a layout that are not among `axes`."""
        if not value.is_uniform and len(axes) == len(layout):
            return value
        own = () if value.is_uniform else (0, 1, *(2 + a for a in axes))
        type_ = self.type_of(value.dtype, layout)
        return NamedTile(self.b.broadcast(value.node, axes=own, type=type_), layout)

    def along(self, value: NamedTile, axis: int, layout: Layout) -> NamedTile:
        """What is known for each place of one axis, as a tile of a layout."""
        return self.broadcast(value, (axis,), layout)

    def in_each(self, value: NamedTile) -> NamedTile:
        """A number as one in each thread."""
        return self.broadcast(value, (), ()) if value.is_uniform else value

    # ---- places

    def places(self, share: Share, dtype: DType = I32) -> NamedTile:
        """The places that each register of each thread holds."""
        weight = 1
        total: NamedTile | None = None
        inner = 1
        for digit in share.digits:
            if digit.stride:
                part = self.along_thread(digit, weight, share, dtype)
            else:
                part = self._registers(digit.count, inner, weight, share, dtype)
                inner *= digit.count
            total = part if total is None else self.apply("add", total, part)
            weight *= digit.count
        if total is None:
            return self.broadcast(NamedTile(constant(0, dtype)), (), (share,))
        return total

    def along_thread(self, digit: Digit, weight: int, share: Share, dtype: DType) -> NamedTile:
        """A digit of the thread's number, times a weight."""
        value = self.digit(digit, dtype)
        if weight > 1:
            value = self.apply("mul", value, weight)
        return self.broadcast(value, (), (share,))

    def digit(self, digit: Digit, dtype: DType = I32) -> NamedTile:
        """The value of a digit of the thread's number, in each thread."""
        axis, count = (0, self.warps) if digit.of_warps else (1, WARP)
        stride = digit.stride // WARP if digit.of_warps else digit.stride
        value = NamedTile(self.b.iota(axis=axis, type=self.type_of(dtype, ())))
        if stride > 1:
            value = self.apply("div", value, stride)
        if stride * digit.count < count:
            value = self.apply("rem", value, digit.count)
        return value

    def _registers(
        self, count: int, inner: int, weight: int, share: Share, dtype: DType
    ) -> NamedTile:
        """A digit that counts registers, times a weight."""
        layout = (share,)
        value = NamedTile(self.b.iota(axis=2, type=self.type_of(dtype, layout)), layout)
        if inner > 1:
            value = self.apply("div", value, inner)
        if inner * count < share.registers:
            value = self.apply("rem", value, count)
        return self.apply("mul", value, weight) if weight > 1 else value

    def is_elementwise(self, node: Node) -> bool:
        return ops.lookup(node.op).kind == "elementwise"
