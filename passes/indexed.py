"""indexed: compute only the elements that indices select, instead of whole arrays.

- A loss reads one logarithm of each row: only those are computed.
- The gradient of an embedding that is also a classifier's weight is a scatter into zeros plus a
  matmul. The rows are added to the matmul's result, in place if its memory is free, and no array of
  zeros is built.
- If only a part of a sort is read, at its beginning or around its middle, that part is selected.
- If indices along a row are known without data, as in a pad by reflection, the row is copied part
  by part.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from stack.ir.axes import parse_rule
from stack.ir.builder import Builder, make
from stack.ir.dim import Dim
from stack.ir.func import Func
from stack.ir.node import Block, Node
from stack.ir.traits import is_item, spread, writes_by_data
from stack.passes.control import BlockPass
from stack.passes.rules.constant_indices import gather_of_runs, known_reduction
from stack.passes.rules.indexing import gathered_operand, spread_along
from stack.rewrite.engine import Replacement, Scope, on, replace, rewrite
from stack.rewrite.log import Log
from stack.rewrite.splat import splat


@dataclass(frozen=True)
class Indexed(BlockPass):
    """Gather before computing, scatter sums into their addends, select instead of sorting."""

    name: ClassVar[str] = "indexed"

    def run(self, func: Func, log: Log) -> Func:
        return rewrite(super().run(func, log), RULES, log)

    def change(self, block: Block, log: Log) -> Block:
        scope, changed = Scope(block, log), dict[Node, Replacement]()
        for node in block.nodes:
            if node.op != "sort":
                continue
            axis, slices = int(node.attrs["axis"]), slices_of(node, scope)
            size = node.args[0].shape[axis]
            limits: list[Dim] = [s.attrs["limit"][axis] for s in slices]
            known = [n for n in limits if isinstance(n, int)]
            if not known or len(known) < len(limits) or not isinstance(size, int):
                continue
            start, first = min(int(s.attrs["start"][axis]) for s in slices), max(known)
            if first - start >= size or not log.spend("indexed"):
                continue
            kept = {"first": first, "start": start} if start else {"first": first}
            chosen = make("sort", node.args, {**node.attrs, **kept})
            for old in slices:
                item = make("item", (chosen,), old.args[0].attrs)
                new = item if item.type == old.type else _later(item, old, axis, start)
                changed[old] = Replacement(new)
        return replace(block, changed) if changed else block


def _later(item: Node, old: Node, axis: int, start: int) -> Node:
    """Returns slice `old` of a whole array as a slice of `item`, which is the part of that array
    from index `start` of an axis on."""
    ends = ("start", "limit")
    moved = {e: tuple(n - start * (i == axis) for i, n in enumerate(old.attrs[e])) for e in ends}
    return make("slice", (item,), {**old.attrs, **moved})


def slices_of(node: Node, scope: Scope) -> list[Node]:
    """Returns the slices of a sort's results if nothing but slices reads them; empty if anything
    else does, or the block returns one."""
    found: list[Node] = []
    for item in scope.users(node):
        users = scope.users(item)
        if not is_item(item) or scope.is_result(item) or any(u.op != "slice" for u in users):
            return []
        found += users
    return [] if scope.is_result(node) else found


@on("gather")
def gather_first(node: Node, op: Builder, scope: Scope) -> Node | None:
    """gather(op(x, v)) with fewer elements than x is op(gather(x), v).

    v must be constant along the indexed axes.
    """
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
    """y + scatter(0, i, u) is scatter(y, i, u), if sums have at least 32 bits."""
    for whole, rows in (node.args, node.args[::-1]):
        if not writes_by_data(rows) or rows.attrs["kind"] != "add" or splat(rows.args[0]) != 0:
            continue
        if whole.type != node.type or node.dtype.bits < 32 or scope.used_outside(rows, (node,)):
            continue
        return make("scatter", (whole, *rows.args[1:]), rows.attrs)
    return None


RULES = (gather_of_runs, known_reduction, gather_first, scatter_last)
