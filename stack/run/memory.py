"""Memory planning: places buffers with known live ranges into one arena."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

ALIGNMENT = 64


@dataclass(frozen=True)
class Lifetime:
    """A buffer of `size` bytes that must exist from step number `first` to `last` of the program,
    both included.
    """

    size: int
    first: int
    last: int


def place(buffers: Sequence[Lifetime]) -> tuple[list[int], int]:
    """Plans memory: returns the byte offset of each buffer in one allocation, the arena, and the
    size of the arena.

    Buffers are placed largest first, each at the lowest gap that is free over its whole live range
    (Pisarchyk and Lee, "Efficient Memory Management for Deep Neural Net Inference", 2020, greedy by
    size).
    """
    offsets = [0] * len(buffers)
    placed: list[int] = []
    total = 0
    for i in sorted(range(len(buffers)), key=lambda k: -buffers[k].size):
        own = buffers[i]
        taken = sorted(
            (offsets[j], offsets[j] + buffers[j].size)
            for j in placed
            if buffers[j].first <= own.last and own.first <= buffers[j].last
        )
        offset = 0
        for start, end in taken:
            if offset + own.size <= start:
                break
            offset = max(offset, _align(end))
        offsets[i] = offset
        placed.append(i)
        total = max(total, offset + own.size)
    return offsets, _align(total)


def _align(offset: int) -> int:
    return -(-offset // ALIGNMENT) * ALIGNMENT
