"""Halo exchange: the overlapping parts of a dim that ranks need to read through a window.

`64{tp, -1:17:16}`: the first part is elements -1 to 16, and each next part starts 16 later.
Elements outside of the dim are 0. Ranks that hold disjoint parts of ceil(n / ranks) exchange the
missing elements at their borders (a halo, or ghost cells).
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple


class Overlap(NamedTuple):
    """Overlapping parts of a sharded dim: part k has the elements `start + k * step` up to,
    without, `stop + k * step`. They may be outside of the dim.
    """

    start: int
    stop: int
    step: int

    def __str__(self) -> str:
        return f"{self.start}:{self.stop}:{self.step}"

    @property
    def size(self) -> int:
        """Number of elements of each part."""
        return self.stop - self.start

    def first(self, number: int) -> int:
        """Returns the index of the first element of part `number`. It may be outside of the dim."""
        return self.start + number * self.step


class Message(NamedTuple):
    """A range of elements of a dim, by global index, that one rank of a group sends to another."""

    source: int
    target: int
    start: int
    stop: int


@lru_cache(maxsize=1 << 12)
def messages(size: int, ranks: int, overlap: Overlap) -> tuple[Message, ...]:
    """Returns all messages of a halo exchange, in which ranks with disjoint parts of a dim get the
    overlapping parts `overlap`. Includes those of a rank to itself.

    The disjoint parts have ceil(size / ranks) elements.
    """
    part = -(-size // ranks)
    found: list[Message] = []
    for target in range(ranks):
        first = max(overlap.first(target), 0)
        last = min(overlap.first(target) + overlap.size, size)
        for source in range(first // part, -(-last // part)):
            start, stop = max(first, source * part), min(last, (source + 1) * part)
            if start < stop:
                found.append(Message(source, target, start, stop))
    return tuple(found)


def sends(size: int, ranks: int, overlap: Overlap) -> list[int]:
    """The message sizes, in elements, of the rank that sends most."""
    found: list[list[int]] = [[] for _ in range(ranks)]
    for message in messages(size, ranks, overlap):
        if message.source != message.target:
            found[message.source].append(message.stop - message.start)
    return max(found, key=sum)
