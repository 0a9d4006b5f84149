"""Index maps of a group: the index of each node, from the index of one."""

from __future__ import annotations

from stack.ir import ops
from stack.ir.axes import Index
from stack.ir.node import Block, Node
from stack.ir.relation import Linear
from stack.ir.traits import is_elementwise, is_part
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
