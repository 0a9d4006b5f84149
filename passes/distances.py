"""distances: compute once for each distance what depends only on the distance of two positions.

Attention with a learned bias for the distance of query and key looks up an array of rows times
columns, whose element (i, j) is a function of j - i. There are only rows + columns - 1 distances.
So the index is computed, and the table read, once for each of them, and the array reads the result
at j - i + rows - 1. A stream reads such a window of neighbours through registers of one tile.

In the gradient, updates of the table are first summed along each diagonal. A test whether all these
indices are in range becomes a test of one index for each distance.
"""

from __future__ import annotations

from dataclasses import dataclass

from stack.ir.axes import LETTERS, parse_rule
from stack.ir.builder import Builder, constant, make
from stack.ir.dim import Dim, add, mul, substitute, symbol
from stack.ir.func import Func
from stack.ir.node import Node
from stack.ir.traits import is_elementwise, repeats
from stack.ir.types import I32, DType, TensorType
from stack.passes.positions.affine import affine, slope
from stack.passes.tiling.frame import static
from stack.rewrite.engine import Scope, on, rewrite
from stack.rewrite.log import Log
from stack.rewrite.passes import Pass

REPEATABLE = ("max", "min", "and", "or")  # reductions that may meet an element several times


@dataclass(frozen=True)
class Distances(Pass):
    """Compute indices that depend on a distance of positions for each distance only."""

    def run(self, func: Func, log: Log) -> Func:
        return rewrite(func, RULES, log)


@on("gather")
def tables_by_distance(node: Node, op: Builder, scope: Scope) -> Node | None:
    """table[f(j - i)] is table[f(d)] at d = j - i."""
    if len(node.args) != 2 or node.args[1].tensor.rank != 2:
        return None
    table, index = node.args
    found = _by_distance(index)
    if found is None:
        return None
    rule = parse_rule(node.attrs["rule"])
    own, given, made = ([a.names[0] for a in side] for side in (*rule.inputs, rule.outputs[0]))
    if not set(given) <= set(made) or not set(given).isdisjoint(own):
        return None
    distance = next(n for n in LETTERS if n not in {*own, *made})
    others = [n for n in made if n not in given]
    read = " ".join(map(str, rule.inputs[0]))
    line = " ".join([*others, distance])  # distances last: a row of neighbours is contiguous
    each = make("gather", (table, found), {"rule": f"{read}, {distance} -> {line}"})
    sides = line + "!", " ".join(given), " ".join(made)
    at = _distance(index)
    return make("gather", (each, at), {"rule": "{}, {} -> {}".format(*sides)})


@on("scatter")
def sums_by_distance(node: Node, op: Builder, scope: Scope) -> Node | None:
    """Updates at f(j - i) are summed for each distance d, and the sums are added at f(d)."""
    if len(node.args) != 3 or node.args[1].tensor.rank != 2 or node.attrs["kind"] != "add":
        return None
    table, index, updates = node.args
    found = _by_distance(index)
    rule = parse_rule(node.attrs["rule"])
    own, given, new = ([a.names[0] for a in side] for side in rule.inputs)
    if found is None or not set(given) <= set(new) or not set(given).isdisjoint(own):
        return None
    distance = next(n for n in LETTERS if n not in {*own, *new})
    others = [n for n in new if n not in given]
    sizes = dict(zip(new, updates.shape, strict=True))
    shape = (*found.shape, *(sizes[n] for n in others))
    hint = table.tensor.with_shape(shape)
    zeros = make("broadcast", (constant(0, table.dtype),), {"axes": ()}, hint=hint)
    line = " ".join([distance, *others])
    sums = line.replace(distance, distance + "!", 1)
    inner = f"{sums}, {' '.join(given)}, {' '.join(new)} -> {sums}"
    each = make("scatter", (zeros, _distance(index), updates), {"kind": "add", "rule": inner})
    whole = " ".join(map(str, rule.inputs[0]))
    outer = f"{whole}, {distance}, {line} -> {whole}"
    return make("scatter", (table, found, each), {**node.attrs, "rule": outer})


@on("reduce")
def tests_by_distance(node: Node, op: Builder, scope: Scope) -> Node | None:
    """The reduction of f(j - i) over i and j is that of f(d), if it may repeat elements."""
    (value,) = node.args
    if node.shape or value.tensor.rank != 2 or node.attrs["kind"] not in REPEATABLE:
        return None
    found = _by_distance(value)
    return None if found is None else make("reduce", (found,), {**node.attrs, "axes": (0,)})


def _by_distance(node: Node) -> Node | None:
    """Returns the elements of a matrix for each distance j - i of column and row, the least first.

    None if an element depends on more than the distance, or if it is affine in it: computing it
    then costs no more than reading it.
    """
    rows, columns = node.shape
    if not (isinstance(rows, int) and isinstance(columns, int)) or min(rows, columns) < 2:
        return None
    made = _Distances(rows, columns)
    return None if made.line(node) is not None else made.each(node)


class _Distances:
    """Rebuilds matrices of a number of rows and columns as arrays of one element per distance."""

    def __init__(self, rows: int, columns: int) -> None:
        self.index = (symbol("i", 0, rows - 1), symbol("j", 0, columns - 1))
        self.rows, self.count = rows, rows + columns - 1
        self.known: dict[Node, Node | None] = {}

    def line(self, node: Node) -> tuple[int, int] | None:
        """Returns s and c if the element at (i, j) is s * (j - i) + c, else None."""
        value = affine(node, self.index)
        if value is None:
            return None
        grown, start = slope(value, "j"), substitute(value, {"i": 0, "j": 0})
        if not (isinstance(grown, int) and isinstance(start, int)):
            return None
        i, j = self.index
        straight: Dim = add(start, mul(grown, add(j, mul(i, -1))))
        return (grown, start) if straight == value else None

    def each(self, node: Node) -> Node | None:
        """Returns the elements by distance, None if they depend on more than the distance."""
        if node not in self.known:
            self.known[node] = self._each(node)
        return self.known[node]

    def _each(self, node: Node) -> Node | None:
        line = self.line(node)
        if line is not None:
            return self._line(line[0], line[1] - line[0] * (self.rows - 1), node.dtype)
        if repeats(node) and not node.args[0].shape:
            return self._full(node.args[0])
        if not is_elementwise(node):
            return None
        args = [self.each(a) if a.tensor.rank else a for a in node.args]
        found = [a for a in args if a is not None]
        if len(found) < len(args):
            return None
        return node.rebuilt(found, type_=node.tensor.with_shape((self.count,)))

    def _line(self, factor: int, start: int, dtype: DType) -> Node:
        """Returns the array of factor * d + start."""
        type_ = TensorType(dtype, (self.count,))
        steps = make("iota", (), {"axis": 0}, hint=type_)
        by, first = (self._full(constant(n, dtype)) for n in (factor, start))
        return make("add", (make("mul", (steps, by)), first))

    def _full(self, value: Node) -> Node:
        """Returns an array that repeats a number."""
        return make(
            "broadcast", (value,), {"axes": ()}, hint=value.tensor.with_shape((self.count,))
        )


def _distance(like: Node) -> Node:
    """Returns a matrix of j - i + rows - 1, with the shape of `like`."""
    type_ = TensorType(I32, like.shape)
    i, j = (make("iota", (), {"axis": axis}, hint=type_) for axis in (0, 1))
    last = make("broadcast", (constant(static(like.shape[0]) - 1, I32),), {"axes": ()}, hint=type_)
    return make("add", (make("sub", (j, i)), last))


RULES = (tables_by_distance, sums_by_distance, tests_by_distance)
