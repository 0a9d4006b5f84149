"""The layout of one axis of a tile: which registers of which threads have its elements."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import accumulate
from math import prod
from operator import mul

from stack.ir.node import Node
from stack.ir.types import DType
from stack.ir.warp_ops import WARP


@dataclass(frozen=True)
class Digit:
    """One digit of an index: a register number, or the bits of the thread number from `stride` on.

    Attributes:
        count: values of the digit, a power of two.
        stride: the smallest thread number in which the digit is 1; 0 for registers.
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
    """The distribution of one axis of a tile over registers and threads: the digits of its index,
    lowest first.
    """

    digits: tuple[Digit, ...] = ()

    @property
    def size(self) -> int:
        """Elements along the axis."""
        return prod(d.count for d in self.digits)

    @property
    def registers(self) -> int:
        """Elements that one thread has."""
        return prod(d.count for d in self.digits if not d.stride)

    @property
    def vector(self) -> int:
        """Number of elements, adjacent along the axis, that a thread has in consecutive registers.

        It bounds the width of vector loads and stores.
        """
        first = self.digits[0] if self.digits else Digit(1)
        return 1 if first.stride else first.count

    @property
    def weighted(self) -> list[tuple[Digit, int]]:
        """The digits with their weights: how much the index grows if the digit grows by 1."""
        weights = accumulate((d.count for d in self.digits), mul, initial=1)
        return list(zip(self.digits, weights, strict=False))

    @property
    def bits(self) -> int:
        """The bits of the thread number that the index along the axis depends on, as a mask."""
        return sum(d.stride * (d.count - 1) for d in self.digits)


@dataclass(frozen=True)
class Point(Share):
    """An axis of one element, which is at index `at` in all threads."""

    at: Node | None = None


Layout = tuple[Share, ...]


@dataclass(frozen=True)
class ThreadValue:
    """A value of the kernel as its threads have it in registers.

    Attributes:
        node: a tile with the axes warp, lane, and one of registers for each axis of the value.
            A scalar is either uniform, without axes, or one number per thread.
        layout: a share for each axis of the value.
    """

    node: Node
    layout: Layout = ()

    @property
    def dtype(self) -> DType:
        return self.node.dtype

    @property
    def is_uniform(self) -> bool:
        """True for one number of the whole thread block."""
        return not self.node.tensor.rank


def share_of(*digits: tuple[int, int]) -> Share:
    """A share of digits `(count, stride)`: drops digits of one value, merges adjacent ones."""
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
    """True if a digit whose bits start at `stride` uses the bits of the thread number right after
    those of `low`, and both are bits of the lane or both of the warp.
    """
    if not low.stride or not stride:
        return not low.stride and not stride
    return low.stride * low.count == stride and (low.stride < WARP) == (stride < WARP)


def bits_of(layout: Sequence[Share]) -> int:
    """Returns the bits of the thread number that indices of a layout depend on, as a mask."""
    return reduce(lambda found, share: found | share.bits, layout, 0)
