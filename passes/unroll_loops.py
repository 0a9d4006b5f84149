"""unroll_loops: compute several iterations of an elementwise loop at once, or all of them.

An iteration of such a loop reads its carried arrays from memory, computes a few operations on each
element, and writes the arrays back. In copies of the body that follow each other, fusion keeps the
values in between in registers. A loop with few operations becomes one kernel without a loop.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from stack.ir import ops
from stack.ir.builder import Builder, constant, make, results_of
from stack.ir.node import Block, Node
from stack.ir.traits import (
    is_elementwise,
    is_input,
    is_item,
    is_known,
    is_number,
    is_while,
    number,
    place_of,
    repeats,
)
from stack.passes.trip_counts import counters, trip_count
from stack.rewrite.engine import Replacement, Scope, inline_block, replace
from stack.rewrite.log import Log
from stack.rewrite.passes import BlockPass


@dataclass(frozen=True)
class UnrollLoops(BlockPass, needs=("while",)):
    """Unroll loops with elementwise bodies and known trip counts, as far as the limit allows.

    Attributes:
        most: operations on an element in an unrolled iteration, and in iterations that precede the
            loop; limits the time to compile a kernel.
    """

    most: int = 64

    def change(self, block: Block, log: Log) -> Block:
        changed: dict[Node, Node | Replacement] = {}
        scope = Scope(block, log)
        for node in block.nodes:
            count = trip_count(node) if is_while(node) and _is_by_element(node.blocks[1]) else None
            if count is None:
                continue
            allowed = int(self.most // max(1, _operations(node)))
            copies = count if count < 2 * max(1, allowed) else allowed
            if copies < min(count, 2) or not log.spend("unroll_loops", block.locs.get(node, ())):
                continue
            b = Builder()
            values = _unrolled(node, count, copies, b)
            if len(values) == 1:
                changed[node] = Replacement(values[0], (), b.names, b.locs)
            for user in filter(is_item, scope.users(node)):
                changed[user] = Replacement(values[place_of(user)], (node,), b.names, b.locs)
        return replace(block, changed)


def _is_by_element(body: Block) -> bool:
    """True if a loop's body computes each element on its own and creates no arrays."""
    found = (n for n in body.nodes if not (is_input(n) or is_known(n)))
    return all(is_elementwise(n) or repeats(n) for n in found)


def _operations(loop: Node) -> float:
    """Returns the operations of an iteration on one element, without those on counters, which are
    constants in the copies of a body."""
    body = loop.blocks[1]
    known = {body.results[place] for place in counters(loop)}
    return sum(ops.lookup(n.op).flops for n in body.nodes if is_elementwise(n) and n not in known)


def _unrolled(loop: Node, count: int, copies: int, b: Builder) -> Sequence[Node]:
    """Returns the results of a loop with `count` iterations, `copies` of which are one iteration.

    Remaining iterations come first. The condition is tested less often, but holds for the same
    values.
    """
    test, body = loop.blocks
    if copies == count:
        return _after(loop, loop.args, count, b)
    inner = Builder()
    results = _after(loop, body.params, copies, inner)
    blocks = (test, Block(body.params, results, inner.names, inner.locs))
    return results_of(loop.rebuilt(_after(loop, loop.args, count % copies, b), blocks=blocks))


def _after(loop: Node, first: Sequence[Node], count: int, b: Builder) -> Sequence[Node]:
    """Returns the carried values after `count` iterations from the values `first`.

    A counter is a constant, or one addition to its first value, so that later passes know it.
    """
    args, counts = first, counters(loop)
    for turn in range(1, count + 1):
        made = inline_block(loop.blocks[1], args, b)
        for place, (_, step) in counts.items():
            made[place] = _counted(first[place], step * turn)
        args = made
    return args


def _counted(counter: Node, steps: int) -> Node:
    start = number(counter) if is_number(counter) else 0
    added = constant(np.asarray(start + steps).astype(counter.dtype.numpy), counter.dtype)
    return added if is_number(counter) else make("add", (counter, added))
