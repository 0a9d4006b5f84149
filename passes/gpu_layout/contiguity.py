"""Contiguity of tiles in memory: which elements one access can move as an aligned vector.

Along one axis of a tile, integers are analyzed in groups of V neighbours that begin at a multiple
of V. In each group they increase by a fixed step from a number with a known divisor, or nothing is
known. (Triton's AxisInfo analysis computes the same as contiguity, divisibility and constancy.)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from stack.ir.bounds import Integers
from stack.ir.kernel_ops import access_parts
from stack.ir.node import Node
from stack.ir.traits import converts
from stack.ir.types import TensorType
from stack.ir.warp_ops import VECTOR_BYTES

MIRRORED = {"gt": "lt", "le": "ge"}


class IntegerRun(NamedTuple):
    """Integers of a group: they increase by `step`; `divisor` divides the first."""

    step: int
    divisor: int


class Contiguity:
    """Analyzes the index tiles of one kernel along an axis: their step from one element to the
    next, and a divisor of the first element.
    """

    def __init__(self) -> None:
        self.integers = Integers()

    def vectors(self, access: Node) -> list[int]:
        """Returns for each axis of a tile how many neighbours one access can move.

        1 if elements are contiguous and nothing more is known, 0 if they are not.
        """
        return [self.vector(access, axis) for axis in range(tile_of(access).tensor.rank)]

    def vector(self, access: Node, axis: int) -> int:
        """Returns how many neighbours along an axis one access can move."""
        tile = tile_of(access)
        size = size_of(tile.tensor, axis)
        most = VECTOR_BYTES // tile.dtype.bytes if size > 1 else 0
        while most and (size % most or not self._is_vector(access, axis, most)):
            most //= 2
        return most

    def _is_vector(self, access: Node, axis: int, group: int) -> bool:
        """True if an access can move `group` neighbours along an axis of its tile as one vector.

        All such groups must be contiguous and aligned in memory, each with one mask for all of it.
        """
        memory = access.args[0].tensor
        index, mask, _ = access_parts(access)
        if mask is not None and not self._is_constant(mask, axis, group):
            return False
        if all(i.tensor.rank == 0 for i in index):
            return self._is_block_vector(access, axis, group)
        step, divisor = 0, 0
        for i, stride in zip(index, strides_of(memory), strict=True):
            run = self.run(i, axis, group)
            if run is None:
                return False
            step += run.step * stride
            divisor = math.gcd(divisor, run.divisor * stride)
        return step == 1 and divisor % group == 0

    def _is_block_vector(self, access: Node, axis: int, group: int) -> bool:
        """`_is_vector` for an access with scalar indices: they are the start of a block along the
        last axes of the memory. Only the last axis of a block is contiguous."""
        memory, tile = access.args[0].tensor, tile_of(access).tensor
        if axis != tile.rank - 1:
            return False
        index, _, _ = access_parts(access)
        strides = strides_of(memory)
        divisor = self.integers.divisor(index[-1])
        for i, (start, stride) in enumerate(zip(index[:-1], strides, strict=False)):
            moves = i >= memory.rank - tile.rank and size_of(tile, i - memory.rank) > 1
            divisor = math.gcd(divisor, stride if moves else self.integers.divisor(start) * stride)
        ends_whole = not access.attrs.get("clip") or size_of(memory, -1) % group == 0
        return divisor % group == 0 and ends_whole

    def _is_constant(self, mask: Node, axis: int, group: int) -> bool:
        """True if a mask has one value in each group of `group` neighbours along an axis."""
        if group == 1 or not mask.tensor.rank:
            return True
        if mask.op == "broadcast":
            axes: Sequence[int] = mask.attrs["axes"]
            return axis not in axes or self._is_constant(mask.args[0], axes.index(axis), group)
        if mask.op in ("and", "or", "not"):
            return all(self._is_constant(a, axis, group) for a in mask.args)
        if mask.op not in ("lt", "ge", "gt", "le", "eq", "ne"):
            return False
        runs = [self.run(a, axis, group) if a.dtype.is_integer else None for a in mask.args]
        first, second = runs if mask.op not in MIRRORED else runs[::-1]
        if first is None or second is None:
            return False
        if first.step == second.step == 0:
            return True
        is_aligned = not (first.divisor % group or second.divisor % group)
        is_order = mask.op not in ("eq", "ne")
        return is_order and is_aligned and (first.step, second.step) == (1, 0)

    def run(self, node: Node, axis: int, group: int) -> IntegerRun | None:
        """Returns by how much integers of a tile grow from one to the next along an axis, and a
        divisor of the first integer of each group. None if they are not known."""
        if not node.tensor.rank:
            return IntegerRun(0, self.integers.divisor(node))
        if node.op == "iota":
            return IntegerRun(1, group) if int(node.attrs["axis"]) == axis else IntegerRun(0, 1)
        if node.op == "broadcast":
            axes: Sequence[int] = node.attrs["axes"]
            source = node.args[0]
            if axis in axes:
                return self.run(source, axes.index(axis), group)
            return IntegerRun(0, self.integers.divisor(source))
        if converts(node) and node.args[0].dtype.is_integer:
            return self.run(node.args[0], axis, group)
        if node.op in ("add", "sub", "mul", "div", "rem"):
            first, second = (self.run(a, axis, group) for a in node.args)
            if first is not None and second is not None:
                return self._combined(node, first, second, group)
        return None

    def _combined(
        self, node: Node, first: IntegerRun, second: IntegerRun, group: int
    ) -> IntegerRun | None:
        if node.op in ("add", "sub"):
            sign = 1 if node.op == "add" else -1
            divisor = math.gcd(first.divisor, second.divisor)
            return IntegerRun(first.step + sign * second.step, divisor)
        if node.op == "mul" and first.step == second.step == 0:
            return IntegerRun(0, first.divisor * second.divisor)
        if node.op == "mul" and first.step == 0:
            first, second, factor = second, first, self._number(node.args[0])
        else:
            factor = self._number(node.args[1])
        if second.step or factor is None or factor <= 0:
            return None
        if node.op == "mul":
            return IntegerRun(first.step * factor, first.divisor * factor)
        if first.step == 0:
            return IntegerRun(0, 1)
        if first.step != 1 or first.divisor % group or factor % group:
            return None
        return (
            IntegerRun(0, 1) if node.op == "div" else IntegerRun(1, math.gcd(first.divisor, factor))
        )

    def _number(self, node: Node) -> int | None:
        found = self.integers.range(node)
        return found[0] if found is not None and found[0] == found[1] else None


def tile_of(access: Node) -> Node:
    """Returns the tile that a load returns, or that a store writes."""
    return access if access.op == "load" else access.args[1]


def size_of(type_: TensorType, axis: int) -> int:
    """The extent of an axis."""
    return int(type_.shape[axis])  # pyright: ignore[reportArgumentType]


def sizes_of(type_: TensorType) -> tuple[int, ...]:
    """The extents of all axes."""
    return tuple(size_of(type_, i) for i in range(type_.rank))


def strides_of(memory: TensorType) -> list[int]:
    """The strides of a row-major array, in elements."""
    sizes = sizes_of(memory)
    return [math.prod(sizes[i + 1 :]) for i in range(len(sizes))]
