"""The best of all fusings of a graph, how many there are, and how their costs are distributed.

A fusing divides the units of a graph into groups that do not depend on each other in a cycle. So
its groups can run one after another, and what has run after each is a convex cut: a set of units
that contains everything its members read. Dynamic programming over these cuts finds the cheapest
fusings.

Counting has to count each fusing once, although its groups can run in several orders. The last
groups of a fusing, which no other group reads, are a nonempty set. By inclusion and exclusion over
its nonempty subsets, each fusing counts once (as Robinson counts acyclic graphs by their sources,
"Counting labeled acyclic digraphs", 1973).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from stack.measure.fusion_space import TooManyFusings, bits

MOST_CUTS = 50_000
MOST_ENDS = 1_000_000  # sets of groups that can be last in a cut, over all cuts
BINS = 400

Groups = frozenset[int]  # a fusing, by masks of units
Ends = Iterator[tuple[int, int, int]]


@dataclass(frozen=True)
class Fusing:
    """A division of the units into groups, by masks, and its cost."""

    groups: Groups
    cost: float


@dataclass(frozen=True)
class Histogram:
    """Numbers of fusings by cost: `counts[i]` have about the cost `start + i * width`."""

    counts: np.ndarray
    start: float
    width: float

    @property
    def costs(self) -> np.ndarray:
        """The cost of each bin."""
        return self.start + self.width * np.arange(len(self.counts))

    def cheaper(self, cost: float) -> float:
        """Returns the share of fusings that cost less, to the width of a bin."""
        below = self.counts[: max(0, round((cost - self.start) / self.width))]
        return float(below.sum() / self.counts.sum())


class ConvexCuts:
    """The convex cuts of a graph, and the groups between them.

    `reads` has for each unit the mask of units that it reads, which come before it; `costs` the
    cost of each legal group by its mask, which must include the groups of one unit. Units without
    such a group are not part of the graph.

    Raises TooManyFusings if the graph has more than `most` cuts.
    """

    def __init__(
        self, reads: Sequence[int], costs: Mapping[int, float], most: int = MOST_CUTS
    ) -> None:
        self.all = sum(1 << i for i in range(len(reads)) if 1 << i in costs)
        self.costs = costs
        self.readers = [0] * len(reads)
        for i, mask in enumerate(reads):
            for j in bits(mask):
                self.readers[j] |= 1 << i
        self.by_unit: list[list[int]] = [[] for _ in reads]
        self.outside: dict[int, int] = {}  # by group: the units outside that read it
        for mask in costs:
            read = 0
            for i in bits(mask):
                read |= self.readers[i]
                self.by_unit[i].append(mask)
            self.outside[mask] = read & ~mask
        # by cut: the groups that can be the last one of those in the cut
        self.last: dict[int, list[int]] = {}
        pending = [self.all]
        for cut in pending:  # grows during the loop
            if cut in self.last:
                continue
            self.last[cut] = [*self._last(cut)]
            pending.extend(cut & ~mask for mask in self.last[cut] if cut & ~mask not in self.last)
            if len(self.last) > most:
                raise TooManyFusings(
                    f"the graph has more than {most:,} convex cuts, because many of its values do"
                    " not depend on each other"
                )
        self.order = sorted(self.last, key=int.bit_count)  # the empty cut first

    def _last(self, cut: int) -> Iterator[int]:
        found: dict[int, None] = {}
        for i in bits(cut):
            if not self.readers[i] & cut:  # a unit of the last group that no other reads
                found.update(dict.fromkeys(self.by_unit[i]))
        return (m for m in found if not m & ~cut and not self.outside[m] & cut)

    def best(self, count: int = 1) -> list[Fusing]:
        """Returns the cheapest fusings, the best first."""
        found: dict[int, list[Fusing]] = {0: [Fusing(frozenset(), 0.0)]}
        for cut in self.order[1:]:
            made: dict[Groups, float] = {}
            for mask in self.last[cut]:
                for before in found[cut & ~mask]:
                    made[before.groups | {mask}] = before.cost + self.costs[mask]
            ordered = sorted(made.items(), key=lambda item: item[1])
            found[cut] = [Fusing(*item) for item in ordered[:count]]
        return found[self.all]

    def _ends(self, cut: int, weights: Mapping[int, int]) -> Ends:
        """Yields each nonempty set of groups that can all be last: its sign, mask and weight."""
        groups = self.last[cut]

        def extended(start: int, sign: int, mask: int, weight: int) -> Ends:
            for i in range(start, len(groups)):
                if not groups[i] & mask:
                    made = sign, mask | groups[i], weight + weights[groups[i]]
                    yield made
                    yield from extended(i + 1, -sign, *made[1:])

        return extended(0, 1, 0, 0)

    def count(self, most: int = MOST_ENDS) -> int:
        """Returns the number of fusings.

        Raises TooManyFusings if it takes more than `most` sets of groups to count them.
        """
        found, none, left = {0: 1}, dict.fromkeys(self.costs, 0), most
        for cut in self.order[1:]:
            total = 0
            for sign, mask, _ in self._ends(cut, none):
                total += sign * found[cut & ~mask]
                left -= 1
                if left < 0:
                    raise TooManyFusings(
                        f"counting the fusings takes more than {most:,} sets of groups, because"
                        " many values do not depend on each other"
                    )
            found[cut] = total
        return found[self.all]

    def histogram(self, bins: int = BINS) -> Histogram:
        """Returns the distribution of costs, in about `bins` bins from the lowest to the highest.

        What a group saves beside its units alone is rounded to the width of a bin.
        """
        alone = sum(self.costs[1 << i] for i in bits(self.all))
        best, worst = self.best()[0].cost, self._worst()
        width = (worst - best) / bins or 1.0
        room_left, room_right = (
            math.ceil(span / width) + len(self.readers) for span in (alone - best, worst - alone)
        )
        added = {
            mask: round((cost - sum(self.costs[1 << i] for i in bits(mask))) / width)
            for mask, cost in self.costs.items()
        }
        room = room_left + room_right + 1
        start = np.zeros(room, dtype=object)  # exact: terms of inclusion and exclusion cancel
        start[room_left] = 1
        found = {0: start}
        for cut in self.order[1:]:
            found[cut] = made = np.zeros(room, dtype=object)
            for sign, mask, weight in self._ends(cut, added):
                before = found[cut & ~mask]
                low, high = max(0, weight), min(room, room + weight)
                made[low:high] += sign * before[low - weight : high - weight]
        counts = found[self.all].astype(float)
        return Histogram(counts, alone - room_left * width, width)

    def _worst(self) -> float:
        """Returns the cost of the most expensive fusing."""
        found = {0: 0.0}
        for cut in self.order[1:]:
            found[cut] = max(found[cut & ~mask] + self.costs[mask] for mask in self.last[cut])
        return found[self.all]
