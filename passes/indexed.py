"""indexed: what indices name is computed alone, where whole arrays would be.

A loss reads one logarithm of each row: only those are taken. The gradient of an embedding that is
a classifier's weight too is a sum of a scatter into zeros and of a product: the rows are added to
the product, in its memory where it is free, and no array of zeros is made.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from stack.ir.axes import parse_rule
from stack.ir.builder import Builder, make
from stack.ir.node import Func, Node
from stack.ir.traits import spread, writes_by_data
from stack.passes.rules.indexing import gathered_operand, spread_along
from stack.rewrite.engine import Scope, on, rewrite
from stack.rewrite.log import Log
from stack.rewrite.passes import Pass
from stack.rewrite.splat import splat


@dataclass(frozen=True)
class Indexed(Pass):
    """Gather before computing, and scatter sums into what they are added to."""

    name: ClassVar[str] = "indexed"

    def run(self, func: Func, log: Log) -> Func:
        return rewrite(func, (gather_first, scatter_last), log)


@on("gather")
def gather_first(node: Node, op: Builder, scope: Scope) -> Node | None:
    """gather(op(x, v)) of fewer elements than x has is op(gather(x), v), where v is the same along
    the indexed axes."""
    rule = parse_rule(node.attrs["rule"])
    own, names = ([a.names[0] for a in o] for o in (rule.inputs[0], rule.outputs[0]))
    indexed = {i for i, axis in enumerate(rule.inputs[0]) if axis.mark == "!"}

    def same(arg: Node) -> Node | None:
        if not arg.shape:
            return arg
        axes = spread(arg)
        if axes is None or not indexed.isdisjoint(axes):
            return None
        return spread_along(arg.args[0], [own[i] for i in axes], names, node)

    return gathered_operand(node, same)


@on("add")
def scatter_last(node: Node, op: Builder, scope: Scope) -> Node | None:
    """y + scatter(0, i, u) is scatter(y, i, u), where u is added in at least 32 bits."""
    for whole, rows in (node.args, node.args[::-1]):
        if not writes_by_data(rows) or rows.attrs["kind"] != "add" or splat(rows.args[0]) != 0:
            continue
        if whole.type != node.type or node.dtype.bits < 32 or scope.used_outside(rows, (node,)):
            continue
        return make("scatter", (whole, *rows.args[1:]), rows.attrs)
    return None
