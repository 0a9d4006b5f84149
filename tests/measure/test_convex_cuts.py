"""The best fusing and the number of fusings, against brute force over all divisions of a graph."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator

import pytest

from stack.measure.convex_cuts import ConvexCuts, Fusing
from stack.measure.fusion_space import TooManyFusings

CHAIN = [0, 0b1, 0b10, 0b100]


def divisions(left: list[int]) -> Iterator[list[int]]:
    """All divisions of some units into groups, as masks."""
    if not left:
        yield []
        return
    first, *rest = left
    for chosen in range(1 << len(rest)):
        inside = [u for i, u in enumerate(rest) if chosen >> i & 1]
        outside = [u for i, u in enumerate(rest) if not chosen >> i & 1]
        mask = sum(1 << u for u in (first, *inside))
        yield from ([mask, *others] for others in divisions(outside))


def runs(groups: list[int], reads: list[int]) -> bool:
    """True if the groups can run one after another."""
    done, left = 0, list(groups)
    while left:
        ready = [
            g for g in left
            if not any(reads[u] & ~done & ~g for u in range(len(reads)) if g >> u & 1)
        ]  # fmt: skip
        if not ready:
            return False
        done |= ready[0]
        left.remove(ready[0])
    return True


def graph(seed: int, size: int) -> tuple[list[int], dict[int, float]]:
    """A random graph, with costs of random groups; no fusing has those that are not convex."""
    rng = random.Random(seed)
    reads = [sum(1 << j for j in range(i) if rng.random() < 0.35) for i in range(size)]
    costs = {1 << i: float(rng.randint(1, 9)) for i in range(size)}
    for mask in range(1, 1 << size):
        if mask.bit_count() > 1 and rng.random() < 0.4:
            costs[mask] = float(rng.randint(1, 12))
    return reads, costs


@pytest.mark.parametrize("seed", range(25))
def test_it_equals_brute_force(seed: int) -> None:
    size = 3 + seed % 5
    reads, costs = graph(seed, size)
    all_ = [
        frozenset(groups)
        for groups in divisions(list(range(size)))
        if all(g in costs for g in groups) and runs(groups, reads)
    ]
    found = sorted(sum(costs[g] for g in groups) for groups in all_)
    cuts = ConvexCuts(reads, costs)
    assert cuts.count() == len(all_)
    best = cuts.best(4)
    assert [fusing.cost for fusing in best] == found[:4]
    assert {fusing.groups for fusing in best} <= set(all_)
    assert len({fusing.groups for fusing in best}) == len(best)
    histogram = cuts.histogram(int(found[-1] - found[0]) or 1)  # bins of width 1
    assert histogram.width == 1
    pairs = zip(histogram.costs, histogram.counts, strict=True)
    assert {int(c): int(n) for c, n in pairs if n} == Counter(map(int, found))
    middle = found[len(found) // 2]
    assert histogram.cheaper(middle) == sum(c < middle for c in found) / len(found)


def test_a_chain_has_a_fusing_for_each_set_of_its_edges() -> None:
    spans = {(1 << b) - (1 << a): 1.0 for a in range(4) for b in range(a + 1, 5)}
    cuts = ConvexCuts(CHAIN, spans)
    assert (cuts.count(), len(cuts.last)) == (8, 5)
    assert cuts.best()[0].groups == {0b1111}


def test_a_group_with_a_path_around_it_is_in_no_fusing() -> None:
    costs = {**{1 << i: 2.0 for i in range(4)}, 0b101: 0.1}  # 0 and 2 without 1, which is between
    assert ConvexCuts(CHAIN, costs).count() == 1
    assert 0b101 not in ConvexCuts(CHAIN, costs).best()[0].groups


def test_two_groups_that_wait_for_each_other_are_in_no_fusing() -> None:
    # 0 -> 1 and 2 -> 3; each of the groups {0, 3} and {1, 2} is convex
    reads = [0, 0b1, 0, 0b100]
    costs: dict[int, float] = dict.fromkeys((1, 2, 4, 8, 0b1001, 0b0110), 1.0)
    assert ConvexCuts(reads, costs).count() == 3
    assert not any({0b1001, 0b0110} <= f.groups for f in ConvexCuts(reads, costs).best(9))


def test_too_many_cuts_or_sets_of_groups_are_an_error() -> None:
    apart = dict.fromkeys((1 << i for i in range(12)), 1.0)
    with pytest.raises(TooManyFusings, match="more than 100 convex cuts"):
        ConvexCuts([0] * 12, apart, most=100)
    with pytest.raises(TooManyFusings, match="takes more than 1,000 sets of groups"):
        ConvexCuts([0] * 12, apart).count(most=1000)


def test_units_without_a_group_are_not_in_the_graph() -> None:
    costs = {0b10: 2.0, 0b100: 3.0, 0b110: 4.0}  # 1 and 2 of a chain of four
    cuts = ConvexCuts(CHAIN, costs)
    assert (cuts.count(), len(cuts.last)) == (2, 3)
    assert cuts.best()[0] == Fusing(frozenset({0b110}), 4.0)
    assert cuts.histogram().counts.sum() == 2
