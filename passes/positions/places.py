"""Where the values of a group sit: the index of each node, from the index of one."""

from __future__ import annotations

from stack.errors import RuleError
from stack.ir import ops
from stack.ir.axes import Index, parse_rule
from stack.ir.node import Block, Node
from stack.passes.tiling.frame import CannotTile

# their operands are read along axes of their own, or at several places
WALLS = ("param", "const", "reduce", "dot", "concat", "pad")
Placed = list[tuple[Node, Index]]


def places_of(body: Block, root: Node, index: Index) -> dict[Node, Index]:
    """Where nodes sit in the axes of the root: pulled to operands, pushed to users.

    A result of the body has a place only where the axes reach all of it: not behind a slice.
    Raises CannotTile where an op has no index map.
    """
    users: dict[Node, list[Node]] = {}
    for node in body.nodes:
        for arg in node.args:
            users.setdefault(arg, []).append(node)
    places = {root: index}
    whole = {root}
    pending = [root]
    sliced: Placed = []  # followed last: another way may reach all of a node
    while pending or sliced:
        if pending:
            node = pending.pop()
        else:
            node, place = sliced.pop()
            if node in places:
                continue
            places[node] = place
        found = [(n, at, node.op == "slice") for n, at in _pull(node, places[node])]
        for user in users.get(node, ()):
            pushed = _push(user, node, places[node])
            if pushed is not None:
                found.append((user, pushed, False))
        for other, at, is_part in found:
            if is_part or node not in whole:
                sliced.append((other, at))
            elif other not in places:
                places[other] = at
                whole.add(other)
                pending.append(other)
    results = set(body.results)
    return {n: place for n, place in places.items() if n in whole or n not in results}


def _pull(node: Node, index: Index) -> Placed:
    """Where the operands of a node sit, as far as they have one place."""
    if node.op in WALLS:
        return []
    if node.op == "gather":
        # indices lie along axes of the result; what they pick from is read anywhere
        rule = parse_rule(node.attrs["rule"])
        place = {a.names[0]: d for a, d in zip(rule.outputs[0], index, strict=True)}
        indices = zip(node.args[1:], rule.inputs[1:], strict=True)
        return [(arg, tuple(place[a.names[0]] for a in axes)) for arg, axes in indices]
    try:
        return list(zip(node.args, ops.pull(node, index), strict=True))
    except RuleError as error:
        raise CannotTile(f"{node.op} has no index map") from error


def _push(user: Node, source: Node, index: Index) -> Index | None:
    """Where a user sits, from where one of its operands sits; None where that is not told."""
    if user.op == "reduce":
        return tuple(d for axis, d in enumerate(index) if axis not in user.attrs["axes"])
    if user.op == "transpose":
        return tuple(index[int(p)] for p in user.attrs["perm"])
    if user.op == "reshape":
        # a reshape read the other way round
        back = Node("reshape", (user,), {}, user.args[0].type)
        return ops.pull(back, index)[0]
    if ops.lookup(user.op).kind == "elementwise" and source.tensor.rank == user.tensor.rank:
        return index
    return None
