"""Where the values of a group sit: the index of each node, from the index of one."""

from __future__ import annotations

from stack.errors import RuleError
from stack.ir import ops
from stack.ir.axes import Index
from stack.ir.node import Block, Node
from stack.passes.tiling.frame import CannotTile

# their operands are read along axes of their own, or at several places
WALLS = ("param", "const", "reduce", "dot", "gather", "concat", "pad")


def places_of(body: Block, root: Node, index: Index) -> dict[Node, Index]:
    """Where nodes sit in the axes of the root: pulled to operands, pushed to users.

    Raises CannotTile where an op has no index map.
    """
    users: dict[Node, list[Node]] = {}
    for node in body.nodes:
        for arg in node.args:
            users.setdefault(arg, []).append(node)
    places = {root: index}
    pending = [root]
    while pending:
        node = pending.pop()
        found: list[tuple[Node, Index]] = []
        if node.op not in WALLS:
            try:
                found.extend(zip(node.args, ops.pull(node, places[node]), strict=True))
            except RuleError as error:
                raise CannotTile(f"{node.op} has no index map") from error
        for user in users.get(node, ()):
            pushed = _push(user, node, places[node])
            if pushed is not None:
                found.append((user, pushed))
        for other, place in found:
            if other not in places:
                places[other] = place
                pending.append(other)
    return places


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
