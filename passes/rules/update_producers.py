"""Fuse elementwise producers of a scatter's updates with the scatter."""

from __future__ import annotations

from stack.ir import ops
from stack.ir.builder import Builder, block_of, make, new_params
from stack.ir.node import Node
from stack.ir.traits import (
    behind,
    is_alias,
    is_generated,
    is_item,
    is_number,
    reads_by_data,
    repeats,
    writes_by_data,
)
from stack.ir.types import TensorType
from stack.rewrite.engine import Scope


def with_producer(node: Node, scope: Scope) -> Node | None:
    """Returns one group of a scatter and the elementwise ops or gather that only it reads.

    None if the group would read memory that this or another scatter updates in place: memory larger
    than the updates would be copied to save a copy of the updates.
    """
    chain = [node.args[-1]]
    while is_alias(chain[-1]) and not is_item(chain[-1]):
        chain.append(chain[-1].args[0])
    *views, group = chain
    if not (is_generated(group) or reads_by_data(group)) or not isinstance(group.type, TensorType):
        return None
    users = (node, *views)
    if any(scope.used_outside(n, users) for n in chain) or node.args.count(chain[0]) > 1:
        return None
    body = group.blocks[0] if group.blocks else block_of(group)
    if not all(_is_by_element(n) for n in body.nodes) or group.attrs.get("kind", "loop") != "loop":
        return None
    if any(_is_written(behind(a), node, scope) for a in group.args):
        return None
    own = new_params("s", [a.type for a in node.args[:-1]], body.params)
    (made,) = body.results
    for view in reversed(views):
        made = make(view.op, (made,), view.attrs, hint=view.type)
    b = Builder()
    b.names.update(body.names)
    b.locs.update(body.locs)
    result = b.op(node.op, (*own, made), node.attrs)
    b.locs[result] = scope.lines(node)
    attrs = {"kind": "loop", "name": "_".join((str(group.attrs.get("name", group.op)), node.op))}
    args = (*node.args[:-1], *group.args)
    return make("fusion", args, attrs, blocks=(b.block((*own, *body.params), (result,)),))


def _is_by_element(node: Node) -> bool:
    is_computed = ops.lookup(node.op).kind == "elementwise"
    return is_computed or repeats(node) or is_number(node) or reads_by_data(node)


def _is_written(memory: Node, node: Node, scope: Scope) -> bool:
    """True if a scatter updates `memory`, and that is larger than the updates of `node`."""
    updates, size = node.args[-1].tensor.size, memory.tensor.size
    if isinstance(updates, int) and isinstance(size, int) and updates >= size:
        return False
    if behind(node.args[0]) is memory and updates != 1:
        return True
    users = [*scope.users(memory)]
    for user in users:
        if is_alias(user):
            users += scope.users(user)
    return any(u is not node and _updated(u) is memory for u in users)


def _updated(step: Node) -> Node | None:
    """Returns the memory that a scatter updates, alone or in a group; None for other steps."""
    if writes_by_data(step):
        return behind(step.args[0])
    if not is_generated(step):
        return None
    (body,) = step.blocks
    made = body.results[0]
    if not writes_by_data(made) or made.args[0] not in body.params:
        return None
    return behind(step.args[body.params.index(made.args[0])])
