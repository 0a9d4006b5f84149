"""Values of a group's nodes at an index, as tiles over the axes that the index moves along.

Each op says by its axis rule where it reads its operands. 16-bit floats are widened on load and
narrowed on store, so that everything between is computed in f32.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from stack.frames import NESTED
from stack.ir import ops
from stack.ir.axes import Index, parse_rule
from stack.ir.builder import constant
from stack.ir.dim import Dim, add, bounds, floordiv, mod, mul
from stack.ir.node import Block, Node
from stack.ir.traits import converts, is_number, reads_by_data, reinterprets
from stack.ir.types import I32, I64, DType
from stack.passes.blocking.frame import NamedTile
from stack.passes.blocking.memory import BlockMemory
from stack.passes.positions.affine import affine
from stack.passes.tiling.frame import CannotTile, static, wide

Reader = Callable[[Index], NamedTile]  # how a value is read at an index
Wanted = tuple[Node, Index, NamedTile | None]  # a value, where, and for which elements


class _Deeper(Exception):
    """A value that is to be computed before those that wait for it."""

    def __init__(self, wanted: Wanted) -> None:
        self.wanted = wanted


def _is_rounded(node: Node, dtype: DType) -> bool:
    """Whether it is what a wide type makes of values of a type."""
    while reads_by_data(node):
        node = node.args[0]
    return converts(node) and node.args[0].dtype == dtype


def _is_zero(node: Node) -> bool:
    """Whether it is the 0 that masked loads give, not -0.0."""
    return is_number(node) and not any(node.attrs["value"].array.tobytes())


def at_place(place: Index, held: NamedTile) -> Reader:
    """A value that is only read at one place."""

    def read(index: Index) -> NamedTile:
        if index != place:
            raise CannotTile("a value is read at another index than it is carried at")
        return held

    return read


class BlockValues(BlockMemory):
    """Values of the nodes of `body`; `inputs` are what is loaded from memory."""

    def __init__(self, body: Block, integer: DType = I32) -> None:
        super().__init__(body, integer)
        self.inputs: dict[Node, Node] = {}
        self.known: dict[Node, Reader] = {}  # values that are there, such as a loop carries
        self.known_as: dict[Node, Node] = {}  # nodes that are another node where it is computed

    def value(self, node: Node, index: Index, guard: NamedTile | None = None) -> NamedTile:
        """The value of a node at an index, in the type that kernels compute in.

        `guard` says for which elements it is needed; loads do not touch memory elsewhere.
        """
        key = (self.known_as.get(node, node), index, guard)
        if key in self.memo:
            return self.memo[key]
        if self.waiting >= NESTED:
            raise _Deeper(key)
        pending = [key]
        while pending:  # what is far behind comes first: chains are as long as programs make them
            try:
                self.memo[pending[-1]] = self._named_value(*pending[-1])
                pending.pop()
            except _Deeper as deeper:
                if self.waiting:
                    raise
                pending.append(deeper.wanted)
        return self.memo[key]

    def _named_value(self, node: Node, index: Index, guard: NamedTile | None) -> NamedTile:
        """A value that others may wait for, with its name and source lines."""
        before, waiting = self.b.loc, self.waiting
        self.b.loc, self.waiting = self.locs(node) or before, waiting + 1
        try:
            made = self._value(node, index, guard)
        finally:
            self.b.loc, self.waiting = before, waiting
        if name := self.named(node):
            self.b.names.setdefault(made.node, name)
        return made

    def locs(self, node: Node) -> tuple[str, ...]:
        return self.body.locs.get(node, ())

    def named(self, node: Node) -> str:
        """What the program calls a value; "" where it does not."""
        return self.body.names.get(node, "")

    def _value(self, node: Node, index: Index, guard: NamedTile | None) -> NamedTile:
        if node in self.known:
            return self.known[node](index)
        return self.computed(node, index, guard)

    def computed(self, node: Node, index: Index, guard: NamedTile | None = None) -> NamedTile:
        """The value of a node, known or not, from memory or its operands."""
        if node in self.inputs:
            return self.load(self.inputs[node], index, guard)
        kind = ops.lookup(node.op).kind
        if kind == "elementwise":
            return self._elementwise(node, index, guard)
        special = getattr(self, f"_{node.op}", None)
        if special is not None:
            return special(node, index, guard)
        if kind == "movement" and len(node.args) == 1:  # its element is one of its operand
            (source,) = ops.pull(node, index)
            return self.value(node.args[0], source, guard)
        raise CannotTile(f"no schedule for {node.op}")

    # ---- elementwise and movement

    def _elementwise(self, node: Node, index: Index, guard: NamedTile | None) -> NamedTile:
        args = [self.value(a, index if a.tensor.rank else (), guard) for a in node.args]
        if reinterprets(node):
            source = self.cast(args[0], node.args[0].dtype)
            type_ = source.node.tensor.with_dtype(node.dtype)
            return self.widen(NamedTile(self.b.bitcast(source.node, type=type_), source.axes))
        if converts(node):
            return self._cast(args[0], node)
        return self.compute(node, args)

    def compute(self, node: Node, args: Sequence[NamedTile]) -> NamedTile:
        """An elementwise op of values."""
        return self.apply(node.op, args, dict(node.attrs))

    def _cast(self, value: NamedTile, node: Node) -> NamedTile:
        source, target = node.args[0].dtype, node.dtype
        if wide(source) != source and target != source and not _is_rounded(value.node, source):
            # what is widened is the value that memory holds: others may read it there
            value = self.cast(self.cast(value, source), wide(source))
        if target == source or value.dtype == wide(target) == wide(source):
            # a 16-bit value stays wide; narrowing it must still round
            return self.cast(self.cast(value, target), wide(target))
        return self.widen(self.cast(value, target))

    def _const(self, node: Node, index: Index, guard: NamedTile | None) -> NamedTile:
        if node.tensor.rank:
            raise CannotTile("it holds a table")
        return NamedTile(constant(node.attrs["value"].array, wide(node.dtype)))

    def _iota(self, node: Node, index: Index, guard: NamedTile | None) -> NamedTile:
        return self.cast(self.number(index[int(node.attrs["axis"])]), wide(node.dtype))

    def _pad(self, node: Node, index: Index, guard: NamedTile | None) -> NamedTile:
        source, fill = node.args
        test: NamedTile | None = None
        inner: list[Dim] = []
        attrs = zip(node.attrs["low"], node.attrs["interior"], source.shape, index, strict=True)
        for low, gap, size, position in attrs:
            moved = add(position, mul(low, -1))
            test = self.both(test, self.range_test(moved, 0, (static(size) - 1) * (gap + 1) + 1))
            if gap:
                phase = self.apply("rem", [self.number(moved), self.int(gap + 1)])
                test = self.both(test, self.apply("eq", [phase, self.int(0)]))
                moved = floordiv(moved, gap + 1)
            inner.append(moved)
        value = self.value(source, tuple(inner), self.both(guard, test))
        is_masked = self.is_read(source) and not self.has_windows
        if test is None or (is_masked and _is_zero(fill)):
            return value  # of memory nothing but 0 is read where the test does not hold
        return self.apply("select", [test, value, self.value(fill, (), guard)])

    def _concat(self, node: Node, index: Index, guard: NamedTile | None) -> NamedTile:
        axis = int(node.attrs["axis"])
        position = index[axis]
        turned = rotation(node)
        if turned is not None and not self.tile_axes(position):
            place = mod(add(position, turned[1]), node.shape[axis])
            return self.value(turned[0], (*index[:axis], place, *index[axis + 1 :]), guard)
        start: Dim = 0
        result: NamedTile | None = None
        least, most = bounds(position)
        for arg in node.args:
            end = add(start, arg.shape[axis])
            if least < bounds(end)[0] and most >= bounds(start)[0]:
                moved = (*index[:axis], add(position, mul(start, -1)), *index[axis + 1 :])
                test = self.range_test(position, start, end)
                part = self.value(arg, moved, self.both(guard, test))
                past = self.range_test(position, start, 1 << 31)
                if result is None or past is None:
                    result = part
                else:
                    result = self.apply("select", [past, part, result])
            start = end
        if result is None:
            raise CannotTile("a concat of nothing")
        return result

    def _gather(self, node: Node, index: Index, guard: NamedTile | None) -> NamedTile:
        rule = parse_rule(node.attrs["rule"])
        place = {a.names[0]: d for a, d in zip(rule.outputs[0], index, strict=True)}
        indices = iter(zip(rule.inputs[1:], node.args[1:], strict=True))
        source: list[Dim] = []
        for axis, size in zip(rule.inputs[0], node.args[0].shape, strict=True):
            if axis.mark != "!":
                source.append(place[axis.names[0]])
                continue
            operand, arg = next(indices)
            position = affine(arg, tuple(place[a.names[0]] for a in operand))
            if position is not None:
                source.append(position)
                continue
            value = self.value(arg, tuple(place[a.names[0]] for a in operand), guard)
            source.append(self.data_symbol(self.cast(value, I64), static(size)))
        return self.value(node.args[0], tuple(source), guard)

    def is_read(self, node: Node) -> bool:
        """Whether a value is what memory holds, and so 0 past the ends of axes that it has."""
        while node.op in ("reshape", "transpose", "broadcast", "slice") and node not in self.inputs:
            node = node.args[0]
        return node in self.inputs


def rotation(node: Node) -> tuple[Node, int] | None:
    """What a concat of two slices of one value rotates along its axis, and by how much."""
    axis = int(node.attrs["axis"])
    if len(node.args) != 2 or any(a.op != "slice" for a in node.args):
        return None
    last, first = node.args
    source = last.args[0]
    shift = last.attrs["start"][axis]
    whole = source.shape
    if first.args[0] is not source or node.shape != whole or not isinstance(shift, int):
        return None
    split = (*whole[:axis], shift, *whole[axis + 1 :])
    nothing, ones = (0,) * len(whole), (1,) * len(whole)
    start = (*nothing[:axis], shift, *nothing[axis + 1 :])
    if last.attrs != {"start": start, "limit": whole, "step": ones}:
        return None
    return (
        (source, shift) if first.attrs == {"start": nothing, "limit": split, "step": ones} else None
    )


__all__ = ["BlockValues", "CannotTile", "Reader", "at_place"]
