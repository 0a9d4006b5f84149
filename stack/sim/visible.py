"""Shares of attention scores that masks of positions leave visible, on one rank.

A stream skips blocks that its mask hides, so a causal kernel computes half of its scores. A rank of
a ring computes all, some or none of them, depending on whose keys it has.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator

import numpy as np

from stack.ir.func import Func
from stack.ir.node import Block, Node, walk
from stack.ir.ops import algebra_of, is_whole_view
from stack.ir.traits import choice, is_control, is_while, negates, splat
from stack.rewrite.stream_candidates import streamed
from stack.sim.rank_values import Array, RankValues
from stack.sim.segments import Segment


class SegmentPositions:
    """Positions that the segments of a rank's program read, if masks of scores compare them.

    Attributes:
        axes: mesh axes along which ranks have different positions.
    """

    def __init__(self, segments: Iterable[Segment], balance: float) -> None:
        self._whole, self._masked = RankValues(), dict[Func, bool]()
        for segment in segments:
            func = segment.func
            if func not in self._masked:
                nodes = [n for _, n in walk(func.body)]
                inner = streamed(nodes, func.results, balance)
                self._masked[func] = any(choice(n) is not None for n in inner)
            self.on(0, segment)
        self.axes = tuple(self._whole.read)

    def on(self, rank: int, segment: Segment) -> RankValues:
        """Returns what is known inside of a segment on a rank."""
        if not self._masked[segment.func]:
            return RankValues()
        return self._whole.at(rank).inside(segment.func.params, segment.inputs)


Masked = tuple[Node, RankValues]  # a select of scores, and the values known in its block


def visible_shares(
    block: Block, inner: Collection[Node], tables: Iterable[set[Node]], values: RankValues
) -> dict[Node, float]:
    """Maps nodes of streams to the share of their elements that masks leave visible on a rank.

    Args:
        block: the program.
        inner: all nodes of streams.
        tables: the nodes of each stream.
        values: integers known in the program.
    """
    masked: dict[Node, RankValues] = {}
    for select, known in _selects(block, inner, values):
        masked.setdefault(select, known)
    found: dict[Node, float] = {}
    for table in tables:
        shares = [_visible(n, masked[n]) for n in table if n in masked]
        if shares:
            found.update(dict.fromkeys(table, min(shares)))
    return found


def _selects(block: Block, inner: Collection[Node], values: RankValues) -> Iterator[Masked]:
    """Yields the select nodes among `inner`, also those in branches and calls."""
    for node in block.nodes:
        if node in inner and choice(node) is not None:
            yield node, values
        if is_control(node) and not is_while(node):
            for body in node.blocks:
                args = node.args[len(node.args) - len(body.params) :]  # a branch's test comes first
                yield from _selects(body, inner, values.inside(body.params, args))


def _visible(select: Node, values: RankValues) -> float:
    """Returns the share of elements for which a select does not give -inf or 0; 1 if unknown."""
    chosen = choice(select)
    assert chosen is not None, "a select"
    fills = [splat(side) for side in (chosen.yes, chosen.no)]
    hidden = [fill in (0.0, -math.inf) for fill in fills]
    if hidden[0] == hidden[1]:
        return 1.0
    test, is_shown = chosen.test, hidden[1]
    while is_whole_view(test) or negates(test):
        is_shown ^= negates(test)
        test = test.args[0]
    share = _share(test, values)
    return 1.0 if share is None else share if is_shown else 1 - share


def _share(test: Node, values: RankValues) -> float | None:
    """Returns the share of elements for which a condition of known integers holds; None if it is
    unknown, or if it is large and no comparison of values along different axes."""
    known, facts = values.of(test), algebra_of(test)
    if known is not None:
        return float(known.mean())
    if not facts.is_order:
        return None
    low, high = (values.of(a) for a in (test.args if facts.monotone[1] > 0 else test.args[::-1]))
    if low is None or high is None or _has_common_axis(low, high):
        return None
    side = "right" if facts.reflexive else "left"
    count = np.searchsorted(np.sort(low.ravel()), high.ravel(), side).sum()
    return float(count) / (low.size * high.size)


def _has_common_axis(a: Array, b: Array) -> bool:
    return any(m > 1 and n > 1 for m, n in zip(a.shape, b.shape))
