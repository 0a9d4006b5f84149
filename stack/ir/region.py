"""Regions: boxes in the index space of a value, one range for each dim."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stack.ir.dim import Dim, add, less_equal, maximum, minimum


@dataclass(frozen=True)
class Range:
    """The indices `start`, ..., `stop - 1` of one dim; both may be symbolic."""

    start: Dim
    stop: Dim

    def __str__(self) -> str:
        return str(self.start) if self.is_one else f"{self.start}:{self.stop}"

    @property
    def is_one(self) -> bool:
        return add(self.start, 1) == self.stop

    @property
    def is_empty(self) -> bool:
        """True if it certainly contains no index."""
        return less_equal(self.stop, self.start) is True

    @property
    def last(self) -> Dim:
        return add(self.stop, -1)

    def meet(self, other: Range) -> Range:
        """Returns the range of the indices that are in both ranges."""
        return Range(maximum(self.start, other.start), minimum(self.stop, other.stop))


Region = tuple[Range, ...]


def whole(shape: Sequence[Dim]) -> Region:
    """The region of all elements of a value of this shape."""
    return tuple(Range(0, size) for size in shape)


def element(index: Sequence[Dim]) -> Region:
    """The region of one element."""
    return tuple(Range(i, add(i, 1)) for i in index)
