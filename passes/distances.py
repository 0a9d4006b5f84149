"""distances: compute once for each distance what depends only on the distance of two positions.

Attention with a learned bias for the distance of query and key looks up an array of rows times
columns, whose element (i, j) is a function of j - i. There are only rows + columns - 1 distances.
So the index is computed, and the table read, once for each of them, and the array reads the result
at j - i + rows - 1. A stream reads such a window of neighbours through registers of one tile.

In the gradient, updates of the table are first summed along each diagonal. A test whether all these
indices are in range becomes a test of one index for each distance.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from stack.ir.axes import LETTERS, Index, parse_rule
from stack.ir.builder import Builder, constant, filled, make
from stack.ir.dim import Dim, add, mul, substitute, symbol
from stack.ir.func import Func
from stack.ir.node import Node, topological
from stack.ir.ops import is_view
from stack.ir.traits import is_elementwise, is_formula, repeats
from stack.ir.types import I32, DType, TensorType
from stack.passes.positions.index_maps import affine, slope
from stack.passes.tiling.frame import static
from stack.rewrite.engine import Scope, on, rewrite
from stack.rewrite.log import Log
from stack.rewrite.passes import Pass

REPEATABLE = ("max", "min", "and", "or")  # reductions that may meet an element several times


@dataclass(frozen=True)
class Distances(Pass, needs=("gather", "scatter", "reduce")):
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
    rule_of_rows = "{}, {} -> {}".format(*sides)
    return make("gather", (each, _distance(index)), {"rule": rule_of_rows})


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

    None if an element depends on more than the distance, or if it is affine in positions: computing
    it then costs no more than reading it.
    """
    rows, columns = node.shape
    if not (isinstance(rows, int) and isinstance(columns, int)) or min(rows, columns) < 2:
        return None
    index = symbol("i", 0, rows - 1), symbol("j", 0, columns - 1)
    each: dict[Node, Node] = {}
    for n in topological([node], lambda n: _is_local(n) and n.shape == node.shape):
        made = _same_op(n, each, rows + columns - 1)
        if made is None:
            value = affine(n, index)
            if value is None:
                return None
            made = _line(value, index, (rows, columns), n.dtype)
        if made is not None:
            each[n] = made
    return each.get(node) if affine(node, index) is None else None


def _is_local(node: Node) -> bool:
    """True if an element depends on one element of each operand, or on none."""
    return is_elementwise(node) or is_view(node) or is_formula(node)


def _same_op(node: Node, each: Mapping[Node, Node], count: int) -> Node | None:
    """Returns the op of a node on its operands by distance; None if they have no such form.

    Args:
        each: elements by distance of nodes.
        count: the number of distances.
    """
    type_ = node.tensor.with_shape((count,))
    if repeats(node) and not node.args[0].shape:
        return node.rebuilt(type_=type_)
    args = [each.get(a) if a.tensor.rank else a for a in node.args]
    found = [a for a in args if a is not None]
    if not is_elementwise(node) or len(found) < len(args):
        return None
    return node.rebuilt(found, type_=type_)


def _line(value: Dim, index: Index, shape: tuple[int, int], dtype: DType) -> Node | None:
    """Returns factor * (j - i) + start by distance; None if a value is no such expression of the
    index (i, j) of a matrix.
    """
    factor, start = slope(value, "j"), substitute(value, {"i": 0, "j": 0})
    if not (isinstance(factor, int) and isinstance(start, int)):
        return None
    (i, j), (rows, columns) = index, shape
    if value != add(start, mul(factor, add(j, mul(i, -1)))):
        return None
    steps = make("iota", (), {"axis": 0}, hint=TensorType(dtype, (rows + columns - 1,)))
    by, first = (constant(n, dtype) for n in (factor, start - factor * (rows - 1)))
    return make("add", (make("mul", (steps, filled(by, steps))), filled(first, steps)))


def _distance(like: Node) -> Node:
    """Returns a matrix of j - i + rows - 1, with the shape of `like`."""
    type_ = TensorType(I32, like.shape)
    i, j = (make("iota", (), {"axis": axis}, hint=type_) for axis in (0, 1))
    last = constant(static(like.shape[0]) - 1, I32)
    return make("add", (make("sub", (j, i)), filled(last, j)))


RULES = (tables_by_distance, sums_by_distance, tests_by_distance)
