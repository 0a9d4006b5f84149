"""Interval arithmetic on blocks of an index space: bounds of values from bounds of operands.

A mask of ids is constant on a block of rows and columns if all ids of its rows differ from all ids
of its columns, or if all ids are equal. The least and greatest id on each side show
that: interval arithmetic (Moore, Interval Analysis, 1966), with False below True. A value without a
rule is reduced over each block.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stack.ir import ops
from stack.ir.axes import Index
from stack.ir.builder import constant, converted, make, padded, reshaped, sliced
from stack.ir.dim import add, bounds, mul
from stack.ir.node import Node
from stack.ir.space import identity
from stack.ir.traits import converts, is_number
from stack.ir.types import BOOL, DType, TensorType
from stack.passes.positions.index_maps import affine, slope
from stack.passes.tiling.frame import static


@dataclass(frozen=True)
class BlockValue:
    """One value for each block of an index space: a node whose axes number the blocks along some
    axes of the space, in order.
    """

    node: Node
    axes: tuple[int, ...] = ()


Span = tuple[BlockValue, BlockValue]


class BlockIntervals:
    """Computes bounds of values on blocks of `size` positions along the axes `cut` of an index
    space; other axes are not divided into blocks.

    Attributes:
        read: number of elements that are reduced.
    """

    def __init__(self, iter_vars: Index, cut: Sequence[int], size: int) -> None:
        self.iter_vars = iter_vars
        self.shape = [bounds(m)[1] + 1 for m in iter_vars]
        self.cut = set(cut)
        self.size = size
        self.read = 0
        self.known: dict[tuple[Node, Index], Span] = {}

    def count(self, axis: int) -> int:
        """Returns the number of blocks along an axis."""
        return -(-self.shape[axis] // self.size) if axis in self.cut else self.shape[axis]

    def span(self, node: Node, index: Index) -> Span:
        """Returns for each block the least and greatest value of an integer or boolean node; nan is
        ignored.

        Raises ValueError if the index does not consist of single axes.
        """
        if is_number(node):
            return BlockValue(node), BlockValue(node)
        if ops.is_whole_view(node):
            return self.span(node.args[0], ops.pull(node, index)[0])
        key = (node, index)
        if key not in self.known:
            try:
                if node.dtype.kind == "b":
                    found = self._condition(node, index)
                else:
                    found = self._line(node, index) or self._cast(node, index)
            except ValueError:
                found = None  # an operand is not aligned with the blocks
            self.known[key] = found or self._reduced(node, index)
        return self.known[key]

    # ---- rules

    def _condition(self, node: Node, index: Index) -> Span | None:
        """Returns bounds of a monotone condition on each block, from the bounds of its operands;
        None for other nodes.
        """
        facts = ops.algebra_of(node)
        if facts.negated and not node.args[0].dtype.is_integer:
            return None  # a nan is neither below nor above
        if not facts.negated and not (facts.monotone and all(facts.monotone)):
            return None
        spans = [self.span(a, index if a.tensor.rank else ()) for a in node.args]
        if not facts.monotone:
            return self._equal(spans, is_equal=bool(facts.reflexive))
        ends = [s if sign > 0 else s[::-1] for s, sign in zip(spans, facts.monotone, strict=True)]
        low, high = (self.apply(node.op, *parts) for parts in zip(*ends, strict=True))
        return low, high

    def _equal(self, spans: Sequence[Span], is_equal: bool) -> Span:
        (a_low, a_high), (b_low, b_high) = spans
        meet = self.apply("and", self.apply("le", a_low, b_high), self.apply("le", b_low, a_high))
        same = self.apply("and", self.apply("eq", a_low, b_high), self.apply("eq", a_high, b_low))
        return (same, meet) if is_equal else (self.apply("not", meet), self.apply("not", same))

    def _cast(self, node: Node, index: Index) -> Span | None:
        source, target = node.args[0].dtype if converts(node) else BOOL, node.dtype
        if not (source.kind == target.kind == "i" and target.bits >= source.bits):
            return None
        low, high = self.span(node.args[0], index)
        wider = [BlockValue(converted(part.node, target), part.axes) for part in (low, high)]
        return wider[0], wider[1]

    # ---- leaves

    def _line(self, node: Node, index: Index) -> Span | None:
        """Returns bounds of an affine integer on each block, from its values at the corners of the
        block; None for other nodes.
        """
        line = affine(node, index)
        if line is None:
            return None
        rest = line
        low = high = BlockValue(constant(0, node.dtype))
        for axis, iter_var in enumerate(self.iter_vars):
            name = str(iter_var)
            step = slope(line, name)
            if not isinstance(step, int):
                return None
            if step == 0:
                continue
            rest = add(rest, mul(iter_var, -step))
            size = self.size if axis in self.cut else 1
            start = self._times(self.numbers(axis, node.dtype), step * size)
            end = self._plus(start, step * (size - 1))
            first, last = (start, end) if step > 0 else (end, start)
            low, high = self.apply("add", low, first), self.apply("add", high, last)
        if not isinstance(rest, int):
            return None
        return self._plus(low, rest), self._plus(high, rest)

    def _reduced(self, node: Node, index: Index) -> Span:
        """Returns bounds of a value on each block by reducing all elements of the block."""
        kept = [(i, d) for i, d in enumerate(index) if d != 0]
        axes = [self.iter_vars.index(d) for _, d in kept if d in self.iter_vars]
        if len(axes) != len(kept) or axes != sorted(set(axes)):
            raise ValueError(f"{node.op} is read at {index}")
        self.read += static(node.tensor.size)
        kinds = ("and", "or") if node.dtype.kind == "b" else ("min", "max")
        low, high = (BlockValue(self._each(node, axes, kind), tuple(axes)) for kind in kinds)
        return low, high

    def _each(self, node: Node, axes: Sequence[int], kind: str) -> Node:
        """Builds the reduction of a value over the elements of each block; `kind` is the kind of
        reduction, such as maximum.
        """
        shape = [self.shape[a] for a in axes]
        made = reshaped(node, shape)
        whole = [self.count(a) * self.size if a in self.cut else self.shape[a] for a in axes]
        high = [w - s for w, s in zip(whole, shape, strict=True)]
        made = padded(made, (0,) * len(shape), high, identity(kind, node.dtype))
        split: list[int] = []
        inner: list[int] = []
        for a in axes:
            split.append(self.count(a))
            if a in self.cut:
                inner.append(len(split))
                split.append(self.size)
        if not inner:
            return made
        return make("reduce", (reshaped(made, split),), {"axes": tuple(inner), "kind": kind})

    def numbers(self, axis: int, dtype: DType) -> BlockValue:
        """Builds the number of each block along an axis: 0, 1, and so on."""
        hint = TensorType(dtype, (self.count(axis),))
        return BlockValue(make("iota", (), {"axis": 0}, hint=hint), (axis,))

    # ---- parts

    def apply(self, op: str, *parts: BlockValue) -> BlockValue:
        """Builds an elementwise op of values of blocks, each broadcast to the axes that any of them
        has.
        """
        axes = tuple(sorted({a for p in parts for a in p.axes}))
        return BlockValue(make(op, [self.spread(p, axes) for p in parts]), axes)

    def spread(self, part: BlockValue, axes: Sequence[int]) -> Node:
        """Broadcasts a value of blocks to exactly these axes of the space; a scalar stays one."""
        if part.axes == tuple(axes) or not part.node.tensor.rank:
            return part.node
        at = tuple(i for i, a in enumerate(axes) if a in part.axes)
        hint = TensorType(part.node.dtype, tuple(self.count(a) for a in axes))
        return make("broadcast", (part.node,), {"axes": at}, hint=hint)

    def elements(self, part: BlockValue) -> Node:
        """Expands a value of blocks to one for each element along the same axes, equal within a
        block.
        """
        counts = [self.count(a) for a in part.axes]
        sides = [self.size if a in self.cut else 1 for a in part.axes]
        split: list[int] = []
        at: list[int] = []
        for count, side in zip(counts, sides, strict=True):
            at.append(len(split))
            split += [count, side]
        hint = TensorType(part.node.dtype, tuple(split))
        node = make("broadcast", (part.node,), {"axes": tuple(at)}, hint=hint)
        node = reshaped(node, [c * s for c, s in zip(counts, sides, strict=True)])
        return sliced(node, (0,) * len(counts), [self.shape[a] for a in part.axes])

    def _times(self, part: BlockValue, number: int) -> BlockValue:
        other = BlockValue(constant(number, part.node.dtype))
        return self.apply("mul", part, other) if number != 1 else part

    def _plus(self, part: BlockValue, number: int) -> BlockValue:
        other = BlockValue(constant(number, part.node.dtype))
        return self.apply("add", part, other) if number != 0 else part
