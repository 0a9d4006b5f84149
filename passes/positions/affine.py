"""Integer values as affine expressions of the index at which they are read."""

from __future__ import annotations

from stack.ir import ops
from stack.ir.axes import Index
from stack.ir.dim import Dim, add, less_equal, mul, substitute
from stack.ir.node import Node
from stack.ir.traits import (
    choice,
    converts,
    extremum,
    is_number,
    is_positions,
    multiplies,
    number,
    signs,
)


def slope(line: Dim, name: str) -> Dim:
    """Returns how much an expression grows when symbol `name` grows from 0 to 1.

    For a linear expression, this is the coefficient of the symbol, a number.
    """
    return add(substitute(line, {name: 1}), mul(substitute(line, {name: 0}), -1))


def affine(node: Node, index: Index) -> Dim | None:
    """Returns the element of an integer node at an index as an expression of that index; None if
    the element is data and not computed from the index.
    """
    if node.dtype.kind != "i" or node.dtype.bits < 32:
        return None  # narrow and unsigned integers wrap
    if is_number(node):
        return int(number(node))
    if is_positions(node):
        return index[int(node.attrs["axis"])]
    if ops.is_view(node):
        return affine(node.args[0], ops.pull(node, index)[0])
    if converts(node):
        return affine(node.args[0], index)
    chosen = choice(node)
    if chosen is not None:
        held = _decided(chosen.test, index)
        return None if held is None else affine(chosen.yes if held else chosen.no, index)
    sides = signs(node)
    if not (sides or multiplies(node) or extremum(node)):
        return None
    a, b = (affine(x, index if x.tensor.rank else ()) for x in node.args)
    if a is None or b is None:
        return None
    if extremum(node):
        return _chosen(extremum(node), a, b)
    return add(a, mul(b, sides[1])) if sides else mul(a, b)


def _chosen(sign: int, a: Dim, b: Dim) -> Dim | None:
    """Returns the larger of two expressions if `sign` is 1, the smaller if it is -1.

    None if the bounds of their symbols do not determine which one that is.
    """
    if less_equal(a, b):
        return b if sign > 0 else a
    if less_equal(b, a):
        return a if sign > 0 else b
    return None


def _decided(node: Node, index: Index) -> bool | None:
    """Returns the value of a comparison at an index, if it is the same for all values of the
    symbols. None if it is not, if an operand is not affine, or for other nodes."""
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
