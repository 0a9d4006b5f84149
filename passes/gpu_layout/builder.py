"""Builds values of threads: indices, broadcasts, elementwise ops."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import reduce

from stack.ir.builder import Builder, constant
from stack.ir.node import Block, Node
from stack.ir.types import I32, DType, TensorType
from stack.ir.warp_ops import WARP
from stack.passes.gpu_layout.share import Digit, Layout, Point, Share, ThreadValue, bits_of
from stack.passes.tiling.frame import names_of


class ThreadBuilder:
    """Builds nodes for the threads of one kernel; of the kernel it reads only the names.

    Attributes:
        b: the builder.
        warps: warps of a thread block.
    """

    def __init__(self, block: Block, warps: int) -> None:
        self.b = Builder()
        self.warps = warps
        self._names = names_of(block)

    def fresh(self, hint: str) -> str:
        """Returns an unused name for a variable."""
        return self._names.numbered(hint)

    def type_of(self, dtype: DType, layout: Layout) -> TensorType:
        """Returns the loop-level type of a tile in a layout: warps, lanes, registers."""
        shape = (self.warps, WARP, *(s.registers for s in layout))
        return TensorType(dtype, shape, "tile")

    # ---- ops

    def op(
        self,
        name: str,
        args: Sequence[Node],
        dtype: DType,
        layout: Layout = (),
        attrs: Mapping[str, object] | None = None,
    ) -> ThreadValue:
        """Builds a node with this op, arguments and element type, whose result is in `layout`."""
        type_ = self.type_of(dtype, layout)
        return ThreadValue(self.b.op(name, args, attrs, hint=type_), layout)

    def apply(self, op: str, *args: ThreadValue | int) -> ThreadValue:
        """Builds an elementwise op of values in one layout; integers become constants."""
        first = next(a for a in args if isinstance(a, ThreadValue) and not a.is_uniform)
        nodes = [a.node if isinstance(a, ThreadValue) else constant(a, first.dtype) for a in args]
        return ThreadValue(self.b.op(op, nodes), first.layout)

    def elementwise(self, node: Node, args: Sequence[ThreadValue], layout: Layout) -> ThreadValue:
        """Builds an elementwise op on threads, from tiles in `layout` or scalars."""
        nodes = [
            a.node if a.is_uniform or a.layout == layout else self.broadcast(a, (), layout).node
            for a in args
        ]
        if all(a.is_uniform for a in args):
            made = ThreadValue(Node(node.op, nodes, node.attrs, node.tensor))
            return self.broadcast(made, (), layout) if layout else made
        return self.op(node.op, nodes, node.dtype, layout, node.attrs)

    def sum(self, parts: Iterable[ThreadValue]) -> ThreadValue:
        """The sum of values in the same layout."""
        return reduce(lambda total, part: self.apply("add", total, part), parts)

    def scaled(self, value: ThreadValue, factor: int) -> ThreadValue:
        """Multiplies a value by a factor of at least 1; without a multiplication for 1."""
        return self.apply("mul", value, factor) if factor > 1 else value

    def broadcast(self, value: ThreadValue, axes: Sequence[int], layout: Layout) -> ThreadValue:
        """Broadcasts a value to `layout`: its own axes become the axes `axes` of the result, which
        repeats it along all others.
        """
        if not value.is_uniform and len(axes) == len(layout):
            return value
        own = () if value.is_uniform else (0, 1, *(2 + a for a in axes))
        type_ = self.type_of(value.dtype, layout)
        return ThreadValue(self.b.broadcast(value.node, axes=own, type=type_), layout)

    def full(self, value: float, dtype: DType = I32, layout: Layout = ()) -> ThreadValue:
        """A tile of one constant; without a layout, that number in each thread."""
        return self.broadcast(ThreadValue(constant(value, dtype)), (), layout)

    def per_thread(self, value: ThreadValue) -> ThreadValue:
        """Converts one number for the thread block to one number for each thread."""
        return self.broadcast(value, (), ()) if value.is_uniform else value

    def reshape(self, value: ThreadValue, layout: Layout) -> ThreadValue:
        """Reshapes a tile to another layout; each thread keeps its elements in order."""
        type_ = self.type_of(value.dtype, layout)
        return ThreadValue(self.b.reshape(value.node, type=type_), layout)

    def transpose(self, value: ThreadValue, order: Sequence[int]) -> ThreadValue:
        """Transposes a tile: axis `order[i]` becomes axis i. No element moves to another thread."""
        if list(order) == sorted(order):
            return value
        perm = (0, 1, *(2 + i for i in order))
        layout = tuple(value.layout[i] for i in order)
        return ThreadValue(self.b.transpose(value.node, perm=perm), layout)

    # ---- indices

    def indices(self, layout: Layout) -> list[ThreadValue]:
        """The index of each element along each axis of a layout."""
        return [self.index(layout, axis) for axis in range(len(layout))]

    def index(self, layout: Layout, axis: int, dtype: DType = I32) -> ThreadValue:
        """The index of each element along one axis of a layout."""
        return self.broadcast(self.along(layout[axis], dtype), (axis,), layout)

    def along(self, share: Share, dtype: DType = I32) -> ThreadValue:
        """Builds the index of each element along one axis with this share (distribution over
        registers and threads): the sum of its digits times their weights.
        """
        if isinstance(share, Point) and share.at is not None:
            return self.broadcast(ThreadValue(share.at), (), (share,))
        inner = 1
        parts: list[ThreadValue] = []
        for digit, weight in share.weighted:
            if digit.stride:
                part = self.scaled(self.digit(digit, dtype), weight)
                parts.append(self.broadcast(part, (), (share,)))
            else:
                register = self._iota(2, dtype, (share,))
                part = self._digit_of(register, inner, digit.count, share.registers)
                parts.append(self.scaled(part, weight))
                inner *= digit.count
        return self.sum(parts) if parts else self.full(0, dtype, (share,))

    def terms(self, weighted: Iterable[tuple[Digit, int]]) -> list[ThreadValue]:
        """Builds digit * weight for digits of an index that are bits of the thread number."""
        return [self.scaled(self.digit(digit), weight) for digit, weight in weighted]

    def digit(self, digit: Digit, dtype: DType = I32) -> ThreadValue:
        """Builds a digit of an index that is some bits of the thread number."""
        axis, count = (0, self.warps) if digit.of_warps else (1, WARP)
        stride = digit.stride // WARP if digit.of_warps else digit.stride
        return self._digit_of(self._iota(axis, dtype), stride, digit.count, count)

    def _iota(self, axis: int, dtype: DType = I32, layout: Layout = ()) -> ThreadValue:
        return ThreadValue(self.b.iota(axis=axis, type=self.type_of(dtype, layout)), layout)

    def _digit_of(self, number: ThreadValue, stride: int, count: int, end: int) -> ThreadValue:
        """Extracts a digit from a number below `end`: `number // stride % count`."""
        if stride > 1:
            number = self.apply("div", number, stride)
        return self.apply("rem", number, count) if stride * count < end else number

    def is_first_copy(self, layout: Layout) -> ThreadValue | None:
        """Builds a condition that selects one thread, the first, among threads that have copies of
        the same elements of a tile; None if no two threads do.
        """
        spare = (WARP * self.warps - 1) & ~bits_of(layout)
        tests: list[ThreadValue] = []
        for axis, bits, most in ((1, spare % WARP, WARP), (0, spare // WARP, self.warps)):
            if bits:
                number = self._iota(axis)
                number = number if bits == most - 1 else self.apply("and", number, bits)
                tests.append(self.apply("eq", number, 0))
        return reduce(lambda x, y: self.apply("and", x, y), tests) if tests else None
