"""How one axis of a tile is shared out: which registers of which threads hold its places."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from stack.ir.node import Node
from stack.ir.types import DType
from stack.ir.warp_ops import WARP


@dataclass(frozen=True)
class Digit:
    """One digit of a place: `count` registers, or the bits of a thread's number from `stride` on.

    Attributes:
        count: values that it takes, a power of two.
        stride: the least thread number in which it is 1; 0 where it counts registers.
    """

    count: int
    stride: int = 0

    @property
    def of_lanes(self) -> bool:
        return 0 < self.stride < WARP

    @property
    def of_warps(self) -> bool:
        return self.stride >= WARP


@dataclass(frozen=True)
class Share:
    """The digits of a place on one axis, lowest first."""

    digits: tuple[Digit, ...] = ()

    @property
    def size(self) -> int:
        """Places on the axis."""
        return prod(d.count for d in self.digits)

    @property
    def registers(self) -> int:
        """Places that one thread holds."""
        return prod(d.count for d in self.digits if not d.stride)

    @property
    def vector(self) -> int:
        """Neighbours that lie in neighbouring registers."""
        first = self.digits[0] if self.digits else Digit(1)
        return 1 if first.stride else first.count

    @property
    def bits(self) -> int:
        """The bits of the thread's number that tell something about the place."""
        found = 0
        for digit in self.digits:
            if digit.stride:
                found |= digit.stride * (digit.count - 1)
        return found


Layout = tuple[Share, ...]


@dataclass(frozen=True)
class NamedTile:
    """A value of a block as the threads hold it.

    Attributes:
        node: with the axes warp, lane and one of registers for each axis of the tile; a scalar is
            either one number of the whole block, or one in each thread.
        layout: a share for each axis of the tile.
    """

    node: Node
    layout: Layout = ()

    @property
    def dtype(self) -> DType:
        return self.node.dtype

    @property
    def is_uniform(self) -> bool:
        """Whether it is one number of the whole block."""
        return not self.node.tensor.rank


def share_of(*digits: tuple[int, int]) -> Share:
    """A share of digits `(count, stride)`; those of one value are left out, neighbours joined."""
    found: list[Digit] = []
    for count, stride in digits:
        if count == 1:
            continue
        last = found[-1] if found else None
        if last is not None and _continues(last, stride):
            found[-1] = Digit(last.count * count, last.stride)
        else:
            found.append(Digit(count, stride))
    return Share(tuple(found))


def _continues(low: Digit, stride: int) -> bool:
    """Whether a digit's bits follow those of the one below it, within lanes or within warps."""
    if not low.stride or not stride:
        return not low.stride and not stride
    return low.stride * low.count == stride and (low.stride < WARP) == (stride < WARP)


def bits_of(layout: Sequence[Share]) -> int:
    """The bits of the thread's number that any axis uses."""
    found = 0
    for share in layout:
        found |= share.bits
    return found
