"""Parts of a dim that overlap: what ranks need of their neighbours to read through a window.

`64{tp, -1:17:16}`: the first part is elements -1 to 16, the next one starts 16 later; what lies
outside of the dim is 0. Ranks that hold plain parts of ceil(n / ranks) send each other what is
missing at their borders (a halo, or ghost cells).
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple


class Overlap(NamedTuple):
    """For each rank along the axes of a dim the elements that it holds; in order, as a slice."""

    start: int
    stop: int
    step: int

    def __str__(self) -> str:
        return f"{self.start}:{self.stop}:{self.step}"

    @property
    def size(self) -> int:
        """Elements of each part."""
        return self.stop - self.start

    def first(self, number: int) -> int:
        """Where a part starts."""
        return self.start + number * self.step


class Message(NamedTuple):
    """Elements of a dim, by their places in the whole, that one rank of a group has for another."""

    source: int
    target: int
    start: int
    stop: int


@lru_cache(maxsize=1 << 12)
def messages(size: int, ranks: int, overlap: Overlap) -> tuple[Message, ...]:
    """What ranks that hold plain parts of a dim give each other, and keep, for overlapping ones."""
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
    """Elements in each message of the rank that sends most."""
    found: list[list[int]] = [[] for _ in range(ranks)]
    for message in messages(size, ranks, overlap):
        if message.source != message.target:
            found[message.source].append(message.stop - message.start)
    return max(found, key=sum)
