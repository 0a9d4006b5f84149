"""Builds values of threads: indices, broadcasts, elementwise ops."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import reduce

from stack.ir.builder import Builder, constant
from stack.ir.node import Block, Node
from stack.ir.types import I32, DType, TensorType
from stack.ir.warp_ops import WARP
from stack.passes.gpu_layout.share import Digit, Layout, Point, Share, ThreadValue, bits_of
from stack.passes.tiling.names import names_of


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
        """The type of a tile in a layout."""
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
        """An op whose result is in a layout."""
        type_ = self.type_of(dtype, layout)
        return ThreadValue(self.b.op(name, args, attrs, hint=type_), layout)

    def apply(self, op: str, *args: ThreadValue | int) -> ThreadValue:
        """An elementwise op of values in the same layout."""
        first = next(a for a in args if isinstance(a, ThreadValue) and not a.is_uniform)
        nodes = [a.node if isinstance(a, ThreadValue) else constant(a, first.dtype) for a in args]
        return ThreadValue(self.b.op(op, nodes), first.layout)

    def elementwise(self, node: Node, args: Sequence[ThreadValue], layout: Layout) -> ThreadValue:
        """The elementwise op of a node on tiles in a layout and scalars."""
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
        """A value times a number of at least 1."""
        return self.apply("mul", value, factor) if factor > 1 else value

    def broadcast(self, value: ThreadValue, axes: Sequence[int], layout: Layout) -> ThreadValue:
        """A value whose axes become `axes` of a layout, repeated along all others."""
        if not value.is_uniform and len(axes) == len(layout):
            return value
        own = () if value.is_uniform else (0, 1, *(2 + a for a in axes))
        type_ = self.type_of(value.dtype, layout)
        return ThreadValue(self.b.broadcast(value.node, axes=own, type=type_), layout)

    def full(self, value: float, dtype: DType = I32, layout: Layout = ()) -> ThreadValue:
        """A tile of one constant; without a layout, that number in each thread."""
        return self.broadcast(ThreadValue(constant(value, dtype)), (), layout)

    def per_thread(self, value: ThreadValue) -> ThreadValue:
        """A scalar as one number per thread."""
        return self.broadcast(value, (), ()) if value.is_uniform else value

    def reshape(self, value: ThreadValue, layout: Layout) -> ThreadValue:
        """A tile with the same registers in another layout."""
        type_ = self.type_of(value.dtype, layout)
        return ThreadValue(self.b.reshape(value.node, type=type_), layout)

    def transpose(self, value: ThreadValue, order: Sequence[int]) -> ThreadValue:
        """A tile with its axes in another order."""
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
        """The index of each element along an axis: the sum of its digits times their weights."""
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
        """Digits of the thread number times their weights, in each thread."""
        return [self.scaled(self.digit(digit), weight) for digit, weight in weighted]

    def digit(self, digit: Digit, dtype: DType = I32) -> ThreadValue:
        """A digit of the thread number, in each thread."""
        axis, count = (0, self.warps) if digit.of_warps else (1, WARP)
        stride = digit.stride // WARP if digit.of_warps else digit.stride
        return self._digit_of(self._iota(axis, dtype), stride, digit.count, count)

    def _iota(self, axis: int, dtype: DType = I32, layout: Layout = ()) -> ThreadValue:
        return ThreadValue(self.b.iota(axis=axis, type=self.type_of(dtype, layout)), layout)

    def _digit_of(self, number: ThreadValue, stride: int, count: int, end: int) -> ThreadValue:
        """A digit of a number that is less than `end`."""
        if stride > 1:
            number = self.apply("div", number, stride)
        return self.apply("rem", number, count) if stride * count < end else number

    def is_first_copy(self, layout: Layout) -> ThreadValue | None:
        """True in the first thread of those that have the same elements; None if no two have."""
        spare = (WARP * self.warps - 1) & ~bits_of(layout)
        tests: list[ThreadValue] = []
        for axis, bits, most in ((1, spare % WARP, WARP), (0, spare // WARP, self.warps)):
            if bits:
                number = self._iota(axis)
                number = number if bits == most - 1 else self.apply("and", number, bits)
                tests.append(self.apply("eq", number, 0))
        return reduce(lambda x, y: self.apply("and", x, y), tests) if tests else None
