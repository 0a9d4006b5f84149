"""Undoes reshapes that merge axes before a reduction, so that indices need no divisions.

Merging axes is free for an array in memory. A fused elementwise operand is computed inside of the
reduction loop instead. There, the merged index would be divided for each element of each operand.
"""

from __future__ import annotations

from stack.ir import ops
from stack.ir.axes import reshape_rule
from stack.ir.builder import Builder, make
from stack.ir.node import Node
from stack.ir.traits import is_alias
from stack.passes.rules.dot_layout import reshaped
from stack.rewrite.engine import Scope


def unmerged(node: Node, op: Builder, scope: Scope) -> Node | None:
    """Rewrites a reduction over axes that a reshape has merged as a reduction over the axes before
    the reshape; None if this does not apply.
    """
    merge = node.args[0]
    axes: tuple[int, ...] = node.attrs["axes"]
    if not is_alias(merge) or scope.used_outside(merge, (node,)):
        return None
    source = merge.args[0]
    if ops.lookup(source.op).kind != "elementwise":
        return None
    rule = reshape_rule(source.shape, merge.shape)
    if rule.whole or any(len(a.names) > 1 for a in rule.inputs[0]):
        return None
    reduced = {n for i in axes for n in rule.outputs[0][i].names}
    own = tuple(i for i, a in enumerate(rule.inputs[0]) if reduced.issuperset(a.names))
    if len(own) <= len(axes):
        return None
    return reshaped(make("reduce", (source,), {**node.attrs, "axes": own}), node.shape)
