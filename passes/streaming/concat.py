"""Split rows with appended elements: reduce the row, then combine the result with each element.

If a concat or pad puts single elements beside a long axis, elementwise ops apply to each part. A
reduction is that of the long part combined with the elements. A slice of the long part is that
part. So the rows keep their length, and each element is one value per row.
"""

from __future__ import annotations

from collections.abc import Callable

from stack.ir.builder import converted, make, sliced
from stack.ir.dim import Dim, add, less_equal
from stack.ir.node import Block, Node
from stack.ir.traits import (
    converts,
    extremum,
    is_alias,
    is_reduction,
    signs,
    spread,
    unconverted,
)
from stack.passes.streaming.graph import Graph, keeps_its_value
from stack.passes.streaming.render import in_shape
from stack.passes.streaming.terms import Refusal
from stack.passes.tiling.frame import COMBINE
from stack.rewrite.engine import replace


def split_rows(block: Block, spend: Callable[[tuple[str, ...]], bool]) -> Block:
    """Returns the block with concats and pads of single elements split into the long part and the
    elements. Each is split only if `spend`, which gets its source lines, returns True."""
    refused: set[Node] = set()
    while joined := [n for n in block.nodes if n.op in ("concat", "pad") and n not in refused]:
        found, graph = joined[0], Graph(block)
        refused.add(found)
        try:
            changed = _Split(graph, found).replacements()
        except Refusal:
            continue
        if spend(graph.lines([found])):
            block = _without_shifts(replace(block, changed))
    return block


class _Split:
    """Values along a concat or pad, each as its long part and single elements.

    A single element has the shape of the rows, without the axis.
    """

    def __init__(self, graph: Graph, concat: Node) -> None:
        self.graph = graph
        self.concat = concat
        self.axis, self.pieces = _pieces(concat)
        sizes = [p.shape[self.axis] for p in self.pieces]
        long = [i for i, size in enumerate(sizes) if size != 1]
        if len(long) != 1:
            raise Refusal("not one long part and single elements")
        (self.long,) = long
        self.parts: dict[Node, list[Node]] = {
            concat: [arg if i == self.long else self._row(arg) for i, arg in enumerate(self.pieces)]
        }
        start: Dim = 0
        for size in sizes[: self.long]:
            start = add(start, size)
        self.start, self.size = start, sizes[self.long]

    def replacements(self) -> dict[Node, Node]:
        """Returns replacements of the reductions and slices behind the concat. Raises Refusal."""
        changed: dict[Node, Node] = {}
        reduces = False
        pending = [self.concat]
        members = {self.concat}
        while pending:
            node = pending.pop()
            if node in self.graph.results:
                raise Refusal(f"{self.graph.name(node)} is needed as it is")
            for user in self.graph.users.get(node, ()):
                if user in members or user in changed:
                    continue
                if keeps_its_value(user) and user.shape == self.concat.shape:
                    members.add(user)
                    pending.append(user)
                elif is_reduction(user) and user.attrs["axes"] == (self.axis,):
                    changed[user] = user
                    reduces = True
                elif user.op == "slice" and self._is_long(user):
                    changed[user] = user
                else:
                    raise Refusal(f"{self.graph.name(user)} needs the whole of it")
        if not reduces:
            raise Refusal("nothing is reduced")
        for node in self.graph.nodes:
            if node in members and node is not self.concat:
                self.parts[node] = self._elementwise(node)
        return {n: self._end(n) for n in changed}

    def _is_long(self, user: Node) -> bool:
        """True if a slice takes only the long part along the axis."""
        start, limit = user.attrs["start"][self.axis], user.attrs["limit"][self.axis]
        end = add(self.start, self.size)
        return less_equal(self.start, start) is True and less_equal(limit, end) is True

    def _end(self, node: Node) -> Node:
        parts = self.parts[node.args[0]]
        if node.op == "slice":
            moved = {k: list(node.attrs[k]) for k in ("start", "limit", "step")}
            for key in ("start", "limit"):
                moved[key][self.axis] = add(moved[key][self.axis], -int(str(self.start)))
            made = make("slice", (parts[self.long],), {k: tuple(v) for k, v in moved.items()})
            return parts[self.long] if made.type == parts[self.long].type else made
        kind = str(node.attrs["kind"])
        if kind not in COMBINE or (kind in ("sum", "prod") and node.dtype.bits < 32):
            raise Refusal(f"parts of a {kind} of {node.dtype}")
        total = make("reduce", (parts[self.long],), {"kind": kind, "axes": (self.axis,)})
        for i, part in enumerate(parts):
            if i != self.long:
                total = make(COMBINE[kind], (total, part))
        return total

    def _elementwise(self, node: Node) -> list[Node]:
        found: list[Node] = []
        for i in range(len(self.pieces)):
            args = [self._part(a, i) for a in node.args]
            shape = self.parts[self.concat][i].shape
            hint = node.tensor.with_shape(shape if any(a.tensor.rank for a in args) else ())
            found.append(make(node.op, args, node.attrs, hint=hint))
        return found

    def _part(self, value: Node, i: int) -> Node:
        """Returns the slice of an operand that corresponds to piece `i` of the concat. A piece of a
        single element has no axis."""
        if value in self.parts:
            return self.parts[value][i]
        if not value.tensor.rank:
            return value
        if self._is_repeated(value):
            if i != self.long:
                return self._row(value)
            shape = self.parts[self.concat][i].shape
            return make("broadcast", value.args, value.attrs, hint=value.tensor.with_shape(shape))
        begin: Dim = 0
        for arg in self.pieces[:i]:
            begin = add(begin, arg.shape[self.axis])
        start, limit = [*(0 for _ in value.shape)], [*value.shape]
        start[self.axis] = begin  # pyright: ignore[reportArgumentType, reportCallIssue]
        limit[self.axis] = add(begin, self.pieces[i].shape[self.axis])
        made = sliced(value, start, limit)
        return made if i == self.long else self._row(made)

    def _is_repeated(self, value: Node) -> bool:
        """True if a value is a broadcast along the axis of the concat."""
        along = spread(value)
        return along is not None and self.axis not in along

    def _row(self, value: Node) -> Node:
        """Removes the concat's axis from a value, which has one element along it or is a broadcast
        along it."""
        shape = tuple(s for i, s in enumerate(value.shape) if i != self.axis)
        if not self._is_repeated(value):
            return in_shape(value, shape)
        (inner,) = value.args
        hint = value.tensor.with_shape(shape)
        if inner.tensor.size == hint.size:
            return in_shape(inner, shape)
        axes = tuple(int(a) - (int(a) > self.axis) for a in value.attrs["axes"])
        return make("broadcast", (inner,), {"axes": axes}, hint=hint)


def _pieces(node: Node) -> tuple[int, list[Node]]:
    """Returns the axis and the operands of a concat.

    A pad counts as a concat with its number as single elements. Raises Refusal if it adds more than
    one at an end.
    """
    if node.op == "concat":
        return int(node.attrs["axis"]), list(node.args)
    value, fill = node.args
    low, high, interior = (list(node.attrs[k]) for k in ("low", "high", "interior"))
    moved = [i for i in range(len(low)) if low[i] or high[i] or interior[i]]
    if len(moved) != 1 or any(interior) or not {low[moved[0]], high[moved[0]]} <= {0, 1}:
        raise Refusal("more than single elements are added")
    (axis,) = moved
    shape = tuple(1 if i == axis else s for i, s in enumerate(value.shape))
    one = make("broadcast", (fill,), {"axes": ()}, hint=value.tensor.with_shape(shape))
    return axis, [*[one] * low[axis], value, *[one] * high[axis]]


# ---- max of a difference


def _without_shifts(block: Block) -> Block:
    """Returns the block with max(x - r) replaced by r - r, where r is the max of x."""
    changed: dict[Node, Node] = {}
    for node in block.nodes:
        found = _shifted(node) if extremum(node) > 0 else None
        if found is None:
            continue
        base, moved = found
        if base is not moved:
            continue
        row = in_shape(moved, node.shape)
        changed[node] = converted(make("sub", (row, row)), node.dtype)
    return replace(block, changed)


def _shifted(node: Node) -> tuple[Node, Node] | None:
    """Returns x and r of a row that is x - r, or the max of such rows."""
    node = _plain(node)
    if is_reduction(node) and node.attrs["kind"] == "max":
        inner = node.args[0]
        inner = unconverted(inner)
        if signs(inner) != (1, -1):
            return None
        x, r = inner.args
        axes, along = {int(a) for a in node.attrs["axes"]}, spread(r)
        if along is None or not axes.isdisjoint(along):
            return None
        return make("reduce", (x,), node.attrs), _plain(r.args[0])
    if signs(node) == (1, -1):
        return _plain(node.args[0]), _plain(node.args[1])
    if extremum(node) > 0:
        found = [_shifted(a) for a in node.args]
        first, second = found
        if first is None or second is None or first[1] is not second[1]:
            return None
        parts = [first[0], second[0]]
        if parts[0].type != parts[1].type:
            return None
        return make("max", parts), first[1]
    return None


def _plain(node: Node) -> Node:
    """Follows a value back through casts and reshapes; returns the value that these read."""
    while is_alias(node) or converts(node):
        node = node.args[0]
    return node
