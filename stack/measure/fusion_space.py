"""All groups that a fusion pass could form in a block, found by asking its engine.

A unit is a node that a group may contain, or that runs on its own. Sets of units are bit masks: bit
i is unit i, in program order. A group is found if it grows from one unit by a neighbour at a time,
and the engine accepts each step: loops that fit, the contract with backends, limits, and a fusion
rule. Neighbours read each other, or a common value. Groups that recompute a value in several
kernels are not among them.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from stack.errors import UsageError
from stack.ir.node import Node
from stack.rewrite.fusion import Grouping
from stack.rewrite.given_groups import WithSiblings
from stack.rewrite.group import Group
from stack.rewrite.outline import outlined

MOST_GROUPS = 5000
TOLD = 1000  # groups between two messages


class TooManyFusings(UsageError):
    """A graph that is too large to search all of its fusings."""


@dataclass(frozen=True)
class FusionSpace:
    """The units of a block, and all groups that a pass could form of them.

    Attributes:
        units: in program order.
        reads: for each unit the mask of units that it reads.
        steps: for each legal group, by mask, the node that would compute it: a `fusion`, or the
            unit itself if it runs on its own.
    """

    units: Sequence[Node]
    reads: Sequence[int]
    steps: Mapping[int, Node]

    def members(self, mask: int) -> list[Node]:
        """Returns the units of a mask, in program order."""
        return [self.units[i] for i in bits(mask)]


def bits(mask: int) -> Iterator[int]:
    """Yields the numbers of the bits that are set, lowest first."""
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


def fusion_space(
    grouping: Grouping,
    most: int = MOST_GROUPS,
    inside: int | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> FusionSpace:
    """Finds all groups of a block that a pass could form; `grouping` has a group for each unit.

    Args:
        inside: the mask of units that groups may contain; by default all.
        say: gets messages about progress.

    Raises TooManyFusings if there are more than `most` groups.
    """
    search = _Search(grouping, inside)
    steps: dict[int, Node] = {}
    for i in bits(search.inside):
        unit, single = search.units[i], search.singles.get(i)
        steps[1 << i] = unit if single is None else outlined(grouping, single)
    pending = [(1 << i, group) for i, group in search.singles.items()]
    grouping.ask([WithSiblings(rule) for rule in grouping.all_rules])
    for mask, group in pending:  # grows during the loop
        for grown, merged in search.grown(mask, group):
            if grown in steps:
                continue
            steps[grown] = outlined(grouping, merged)
            pending.append((grown, merged))
            if len(steps) > most:
                raise TooManyFusings(
                    f"the pass could form more than {most:,} groups of its {len(search.units)}"
                    " operations"
                )
            if len(steps) % TOLD == 0:
                say(f"searching: {len(steps):,} legal groups so far, at most {most:,}")
    return FusionSpace(search.units, search.reads, steps)


class _Search:
    def __init__(self, grouping: Grouping, inside: int | None) -> None:
        self.g = grouping
        self.units = grouping.units
        self.inside = (1 << len(self.units)) - 1 if inside is None else inside
        place = self.place = {n: i for i, n in enumerate(self.units)}
        singles = {place[g.members[0]]: g for g in grouping.all_groups}
        self.singles = {i: g for i, g in singles.items() if self.inside >> i & 1}
        self.reads = [_mask(place[s] for s in grouping.reads[n] if s in place) for n in self.units]
        self.readers = [0] * len(self.units)
        self.beside = [0] * len(self.units)  # all units that read a value that a unit reads
        for i, unit in enumerate(self.units):
            for source in grouping.reads[unit]:
                self.beside[i] |= _mask(place[r] for r in grouping.readers[source])
        self.above: list[int] = []  # all units that a unit depends on
        for i, mask in enumerate(self.reads):
            self.above.append(mask | _union(self.above, mask))
            for j in bits(mask):
                self.readers[j] |= 1 << i
        self.below = [0] * len(self.units)  # all units that depend on a unit
        for i in reversed(range(len(self.units))):
            self.below[i] = self.readers[i] | _union(self.below, self.readers[i])

    def is_convex(self, mask: int) -> bool:
        """True if no path leaves a set of units and returns to it."""
        return not _union(self.above, mask) & _union(self.below, mask) & ~mask

    def grown(self, mask: int, group: Group) -> Iterator[tuple[int, Group]]:
        """Yields the legal groups of a group and one more unit, with their masks."""
        around = _union(self.reads, mask) | _union(self.readers, mask) | _union(self.beside, mask)
        with self._held(group):
            for i in bits(around & ~mask):
                if i not in self.singles or not self.is_convex(mask | 1 << i):
                    continue
                unit = self.singles[i]
                is_first = self.readers[i] & mask or not (
                    self.reads[i] & mask or unit.first > group.first
                )
                merged = self.g.try_pair(*((unit, group) if is_first else (group, unit)))
                if isinstance(merged, Group):
                    yield mask | 1 << i, merged

    @contextmanager
    def _held(self, group: Group) -> Generator[None]:
        """Puts a group in the place of the groups of its units, as the engine expects it."""
        parts = [self.singles[self.place[n]] for n in group.members]
        if len(parts) > 1:
            self.g.put(group, *parts)
        yield
        if len(parts) > 1:
            self.g.drop(group)
            for part in parts:
                self.g.put(part)


def _mask(numbers: Iterator[int]) -> int:
    found = 0
    for i in numbers:
        found |= 1 << i
    return found


def _union(masks: Sequence[int], chosen: int) -> int:
    found = 0
    for i in bits(chosen):
        found |= masks[i]
    return found
