"""Index maps of a group: the index of each node, from the index of one, and integers as affine
expressions of the index at which they are read.
"""

from __future__ import annotations

from stack.ir import ops
from stack.ir.axes import Index
from stack.ir.dim import Dim, add, less_equal, mul, substitute
from stack.ir.node import Block, Node
from stack.ir.relation import Linear
from stack.ir.traits import (
    choice,
    converts,
    extremum,
    is_elementwise,
    is_number,
    is_part,
    is_positions,
    multiplies,
    number,
    signs,
)
from stack.passes.tiling.frame import CannotTile

Placed = list[tuple[Node, Index]]


def index_maps_of(body: Block, root: Node, index: Index) -> dict[Node, Index]:
    """Returns the index of each node that the axes of `root` determine, in terms of these axes.
    Indices are passed from nodes to their operands and users.

    A result of the body is included only if the axes reach all of it: not behind a slice. Raises
    CannotTile if an op has no index map.
    """
    users: dict[Node, list[Node]] = {}
    for node in body.nodes:
        for arg in node.args:
            users.setdefault(arg, []).append(node)
    places = {root: index}
    whole = {root}
    pending = [root]
    sliced: Placed = []  # followed last: another path may reach all of a node
    while pending or sliced:
        if pending:
            node = pending.pop()
        else:
            node, place = sliced.pop()
            if node in places:
                continue
            places[node] = place
        found = [(n, at, is_part(node)) for n, at in _pull(node, places[node])]
        for user in users.get(node, ()):
            pushed = _push(user, node, places[node])
            if pushed is not None:
                found.append((user, pushed, False))
        for other, at, is_partial in found:
            if is_partial or node not in whole:
                sliced.append((other, at))
            elif other not in places:
                places[other] = at
                whole.add(other)
                pending.append(other)
    results = set(body.results)
    return {n: place for n, place in places.items() if n in whole or n not in results}


def _pull(node: Node, index: Index) -> Placed:
    """Returns the operands of a node with the index at which each is read, for those that are read
    at one index only.
    """
    if is_elementwise(node):
        return [(arg, index if arg.tensor.rank else ()) for arg in node.args]
    if not node.args:
        return []
    relation, rule = ops.relation_of(node), ops.rule_of(node)
    is_mixed = rule is not None and any(a.mark for a in rule.outputs[0])
    if not isinstance(relation, Linear) or (is_mixed and not ops.is_view(node)):
        raise CannotTile(f"{node.op} has no index map")
    found = zip(node.args, relation.reads(index), strict=True)
    return [(arg, place) for arg, place in found if place is not None]


def _push(user: Node, source: Node, index: Index) -> Index | None:
    """Returns the index of node `user`, given the index of its operand `source`.

    None if that does not determine the index of `user`.
    """
    if is_elementwise(user):
        return index if source.tensor.rank == user.tensor.rank else None
    relation = ops.relation_of(user)
    if not isinstance(relation, Linear):
        return None
    return relation.place(user.args.index(source), index)


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
    if sign := extremum(node):
        ends = (a, b) if less_equal(a, b) else (b, a) if less_equal(b, a) else None
        return ends[sign > 0] if ends is not None else None
    return add(a, mul(b, sides[1])) if sides else mul(a, b)


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
