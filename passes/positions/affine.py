"""Integer values that are expressions of the positions they are read at."""

from __future__ import annotations

from stack.ir import ops
from stack.ir.axes import Index
from stack.ir.dim import Dim, add, less_equal, mul, substitute
from stack.ir.node import Node


def slope(line: Dim, name: str) -> Dim:
    """How much a line grows from 0 to 1 of a symbol; a number where it is one."""
    return add(substitute(line, {name: 1}), mul(substitute(line, {name: 0}), -1))


def affine(node: Node, index: Index) -> Dim | None:
    """An integer node at an index as an expression of that index; None where it is data."""
    if node.dtype.kind != "i" or node.dtype.bits < 32:
        return None  # narrow and unsigned integers wrap
    if node.op == "const" and not node.tensor.rank:
        return int(node.attrs["value"].array)
    if node.op == "iota":
        return index[int(node.attrs["axis"])]
    if ops.is_view(node):
        return affine(node.args[0], ops.pull(node, index)[0])
    if node.op == "cast":
        return affine(node.args[0], index)
    if node.op == "select":
        held = _decided(node.args[0], index)
        return None if held is None else affine(node.args[1 if held else 2], index)
    if node.op in ("add", "sub", "mul", "max", "min"):
        a, b = (affine(x, index if x.tensor.rank else ()) for x in node.args)
        if a is None or b is None:
            return None
        if node.op in ("max", "min"):
            return _chosen(node.op, a, b)
        return mul(a, b) if node.op == "mul" else add(a, mul(b, -1) if node.op == "sub" else b)
    return None


def _chosen(op: str, a: Dim, b: Dim) -> Dim | None:
    """The extremum where the bounds tell which it is."""
    if less_equal(a, b):
        return b if op == "max" else a
    if less_equal(b, a):
        return a if op == "max" else b
    return None


def _decided(node: Node, index: Index) -> bool | None:
    """A comparison that the bounds of positions decide."""
    if ops.is_view(node):
        return _decided(node.args[0], ops.pull(node, index)[0])
    facts = ops.algebra_of(node)
    if not facts.is_order:
        return None
    sides = [affine(x, index if x.tensor.rank else ()) for x in node.args]
    low, high = sides if facts.monotone[1] > 0 else reversed(sides)
    if low is None or high is None:
        return None
    if facts.reflexive:
        return less_equal(low, high)
    is_not = less_equal(high, low)
    return None if is_not is None else not is_not
