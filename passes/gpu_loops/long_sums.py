"""Sums of f32 in long serial loops: what each addition rounds away is summed beside them.

A thread that adds hundreds of numbers one after another has an error that grows with them, where
a framework adds in trees. Exact remainders of the additions keep it near one rounding; they cost
six operations that memory leaves time for. T. Ogita, S. M. Rump, S. Oishi, "Accurate sum and dot
product" (2005), algorithm Sum2; the remainder is D. E. Knuth's.
"""

from __future__ import annotations

from stack.ir.builder import Builder, constant, rebuild_block
from stack.ir.node import Block, Node
from stack.ir.types import F32, TupleType
from stack.passes.summation import added

LONG = 16  # additions that rounding may grow along


def sum_with_remainders(block: Block) -> Block:
    """A kernel's block, with the remainders of all its long sums."""
    return rebuild_block(block, _Sums().visit)


class _Sums:
    def __init__(self) -> None:
        self.b = Builder()
        self.totals: dict[Node, dict[int, Node]] = {}  # by new loop: results with remainders

    def visit(self, node: Node, args: tuple[Node, ...], blocks: tuple[Block, ...]) -> Node:
        """The copy of a node; of a loop that sums, with a remainder for each sum."""
        if node.op == "item" and args[0] in self.totals:
            total = self.totals[args[0]].get(int(node.attrs["index"]))
            if total is not None:
                return total
        if node.op == "loop":
            found = added(node.attrs["kind"], blocks[0], LONG)
            sums = {i: v for i, v in found.items() if v.dtype is F32}
            if sums:
                return self._summed(node, args, blocks[0], sums)
        if args == node.args and blocks == node.blocks:
            return node
        return Node(node.op, args, node.attrs, node.type, blocks)

    def _summed(
        self, node: Node, args: tuple[Node, ...], block: Block, sums: dict[int, Node]
    ) -> Node:
        """The loop with remainders, or its one result."""
        b = self.b
        b.names.update(block.names)
        b.locs.update(block.locs)
        carried = block.params[1:]
        lows = [
            Node("var", (), {"name": f"low_{carried[i].attrs['name']}"}, carried[i].type)
            for i in sums
        ]
        more: list[Node] = []
        for low, (i, value) in zip(lows, sums.items(), strict=True):
            before, after = carried[i], block.results[i]
            grown = b.sub(after, before)
            lost = b.add(b.sub(before, b.sub(after, grown)), b.sub(value, grown))
            more.append(b.add(low, lost))
        inner = Block((*block.params, *lows), (*block.results, *more), b.names, b.locs)
        types = [p.tensor for p in (*carried, *lows)]
        starts = [_zero(b, low) for low in lows]
        loop = Node("loop", (*args, *starts), node.attrs, TupleType(tuple(types)), (inner,))
        found: dict[int, Node] = {}
        for place, i in enumerate(sums):
            total, low = b.item(loop, index=i), b.item(loop, index=len(carried) + place)
            # an infinite sum has no remainder
            found[i] = b.select(b.isfinite(low), b.add(total, low), total)
        if len(carried) == 1:
            return found[0]
        self.totals[loop] = found
        return loop


def _zero(b: Builder, low: Node) -> Node:
    zero = constant(0.0, F32)
    return b.broadcast(zero, axes=(), type=low.type) if low.tensor.rank else zero
