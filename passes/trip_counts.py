"""trip_counts: write on each loop how often it runs, if that is known.

A loop whose end is computed on a device makes the host wait in every iteration, and no CUDA graph
can contain it. A loop that counts between constants needs neither.
"""

from __future__ import annotations

from dataclasses import dataclass

from stack.ir.builder import rebuild
from stack.ir.func import Func
from stack.ir.node import Block, Node
from stack.ir.traits import is_while, number, signs
from stack.rewrite.log import Log
from stack.rewrite.passes import Pass


@dataclass(frozen=True)
class TripCounts(Pass, needs=("while",)):
    """Write `trip_count` on each `while` that counts to a constant by a constant step."""

    def run(self, func: Func, log: Log) -> Func:
        def visit(node: Node, args: tuple[Node, ...], blocks: tuple[Block, ...]) -> Node:
            new = node.rebuilt(args, blocks=blocks)
            count = trip_count(new) if is_while(new) else None
            if count is None or not log.spend("trip_counts", func.body.locs.get(node, ())):
                return new
            return new.rebuilt(attrs={**new.attrs, "trip_count": count})

        return rebuild(func, visit)


def trip_count(loop: Node) -> int | None:
    """Returns the trip count of a `while`; None if it is not known."""
    test = loop.blocks[0]
    (holds,) = test.results
    if holds.op != "lt" or holds.args[0] not in test.params:
        return None
    end, found = _number(holds.args[1]), counters(loop).get(test.params.index(holds.args[0]))
    if end is None or found is None:
        return None
    start, step = found
    return max(0, -(-(end - start) // step))


def counters(loop: Node) -> dict[int, tuple[int, int]]:
    """Maps the numbers of carried values that count from a number, by a positive number in each
    iteration, to both numbers."""
    body = loop.blocks[1]
    slots = zip(loop.args, body.params, body.results, strict=True)
    found = ((_number(arg), _step(after, before)) for arg, before, after in slots)
    return {i: (at, by) for i, (at, by) in enumerate(found) if at is not None and by is not None}


def counter(loop: Node) -> int | None:
    """Returns the number of a loop's carried value that starts at 0 and grows by 1 in each
    iteration; None if there is none."""
    return next((i for i, found in counters(loop).items() if found == (0, 1)), None)


def _step(after: Node, before: Node) -> int | None:
    """Returns the positive constant that an iteration adds to a counter; else None."""
    if signs(after) != (1, 1) or before not in after.args:
        return None
    left, right = after.args
    step = _number(right if left is before else left)
    return step if step is not None and step > 0 else None


def _number(node: Node) -> int | None:
    return number(node) if node.dtype.is_integer else None
