"""Find equal steps in a block: nodes that repeat with a period, each using the step before.

The order is depth first, the deepest operand first. So the values that only one step needs (its
slice of an input) are adjacent to the values that it carries on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from stack.ir import ops
from stack.ir.node import Block, Node, deps

_LAGS = 8  # most nodes of one op in a step
_CANDIDATES = 6  # periods that are tried


@dataclass(frozen=True)
class Change:
    """The difference between a node and its successor in the next step.

    Attributes:
        moves: for each operand, True if it is the next step's; the others are the same.
        by: how far a slice moves along each axis; () for all other nodes.
    """

    moves: tuple[bool, ...]
    by: tuple[int, ...] = ()


@dataclass(frozen=True)
class Steps:
    """`count` equal steps: node `first + t * period + i` of `order` is node `i` of step `t`.

    Attributes:
        changes: for each node of a step, its change from one step to the next.
    """

    order: Sequence[Node]
    first: int
    period: int
    count: int
    changes: Sequence[Change]

    @property
    def end(self) -> int:
        return self.first + self.period * self.count


def find_steps(block: Block, least: int) -> Steps | None:
    """Finds repeated, equal steps (unrolled iterations) in a block: of those that repeat at least
    `least` times, the ones that cover most nodes. None if there are none."""
    order = deepest_first(block)
    index = {n: i for i, n in enumerate(order)}
    best: Steps | None = None
    for period in _periods(order, least):
        changes = [_change(a, b, index, period) for a, b in zip(order, order[period:])]
        first, end = _longest_run(changes, period)
        if (end - first) // period + 1 < least:
            continue
        found = _aligned(order, index, changes, period, first, end + period)
        if found is not None and found.count >= least:
            if best is None or found.count * period > best.count * best.period:
                best = found
    return best


def deepest_first(block: Block) -> list[Node]:
    """Returns the nodes of a block, operands first, of these the deepest first."""
    depth: dict[Node, int] = dict.fromkeys(block.params, 0)
    for node in block.nodes:
        depth[node] = 1 + max((depth[d] for d in deps(node)), default=0)
    done: set[Node] = set(block.params)
    order: list[Node] = []
    pending = sorted(set(block.results), key=lambda n: depth[n])
    while pending:
        node = pending[-1]
        before = [] if node in done else [d for d in deps(node) if d not in done]
        if before:
            pending.extend(sorted(dict.fromkeys(before), key=lambda n: depth[n]))
            continue
        pending.pop()
        if node not in done:
            done.add(node)
            order.append(node)
    return order


def _periods(order: Sequence[Node], least: int) -> list[int]:
    """Returns candidate numbers of nodes per step, most likely first: frequent distances between
    nodes of equal op and type, for the rarest such nodes."""
    places: dict[object, list[int]] = {}
    for i, node in enumerate(order):
        places.setdefault((node.op, node.type, len(node.args)), []).append(i)
    repeated = sorted((p for p in places.values() if len(p) >= least), key=len)
    found: Counter[int] = Counter()
    for at in repeated[:_CANDIDATES]:
        for lag in range(1, _LAGS + 1):
            gaps = Counter(b - a for a, b in zip(at, at[lag:]))
            if gaps:
                gap, times = gaps.most_common(1)[0]
                found[gap] += times
    return [gap for gap, times in found.most_common() if times >= least // 2][:_CANDIDATES]


def _change(a: Node, b: Node, index: dict[Node, int], period: int) -> Change | None:
    """Returns how node `b` differs from node `a`, one step earlier: operands are the same or the
    next step's, and a slice may move. None if it differs in another way, or not at all."""
    if a.op != b.op or a.type != b.type or a.blocks != b.blocks or len(a.args) != len(b.args):
        return None
    moves: list[bool] = []
    for x, y in zip(a.args, b.args):
        is_next = x in index and index.get(y) == index[x] + period and x.type == y.type
        if x is not y and not is_next:
            return None
        moves.append(x is not y)
    if a.attrs == b.attrs:
        return Change(tuple(moves)) if any(moves) else None
    if a.op != "slice" or any(moves) or a.attrs["step"] != b.attrs["step"]:
        return None
    starts = (*a.attrs["start"], *b.attrs["start"])
    if not all(isinstance(v, int) for v in starts):
        return None
    by, to = (
        tuple(y - x for x, y in zip(a.attrs[name], b.attrs[name])) for name in ("start", "limit")
    )
    return Change(tuple(moves), by) if by == to else None


def _longest_run(changes: Sequence[Change | None], period: int) -> tuple[int, int]:
    """Returns the longest range of positions, as start and end, in which each node differs from the
    one a period later as it does one step before."""
    best = (0, 0)
    first = 0
    for i, change in enumerate(changes):
        if change is None:
            first = i + 1
        elif i - first >= period and change != changes[i - period]:
            first = i - period + 1
        best = max(best, (first, i + 1), key=lambda r: r[1] - r[0])
    return best


def _moves(node: Node) -> bool:
    return ops.lookup(node.op).kind == "movement"


def _aligned(
    order: Sequence[Node],
    index: dict[Node, int],
    changes: Sequence[Change | None],
    period: int,
    first: int,
    end: int,
) -> Steps | None:
    """Returns the steps in a periodic range of nodes. The first step starts where that gives the
    most steps and, of these, the fewest carried values. None if a step computes nothing, or if all
    steps use a value of the first."""
    found: list[tuple[int, int, Steps]] = []
    for start in range(first, min(first + period, end)):
        count = (end - start) // period
        own = [c for c in changes[start : start + period] if c is not None]
        if count < 2 or len(own) < period or all(map(_moves, order[start : start + period])):
            continue
        steps = Steps(order, start, period, count, own)
        carried: set[Node] = set()
        is_closed = True
        for node, change in zip(order[start:], own):
            for arg, moves in zip(node.args, change.moves):
                is_inside = index.get(arg, -1) >= start
                if moves and not is_inside:
                    carried.add(arg)
                elif is_inside and not moves:
                    is_closed = False  # a value of the first step that all others use
        if is_closed:
            found.append((-count, len(carried), steps))
    return min(found, key=lambda f: f[:2])[2] if found else None
