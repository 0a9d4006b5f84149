"""Which elements of a tile are neighbours in memory, and how they are aligned.

Along one axis of a tile, integers are looked at in groups of V neighbours that begin at a multiple
of V. In each group they rise by a fixed step from a number with a known divisor, or nothing is
known. (Triton's AxisInfo analysis tells the same by contiguity, divisibility and constancy.)
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from stack.ir.integers import Integers
from stack.ir.kernel_ops import access_parts
from stack.ir.node import Node
from stack.ir.traits import converts
from stack.ir.types import TensorType
from stack.ir.warp_ops import VECTOR_BYTES

Run = tuple[int, int]  # the step in a group, and what divides its first number
MIRRORED = {"gt": "lt", "le": "ge"}


class Runs:
    """Steps and divisors of the integers of one kernel."""

    def __init__(self) -> None:
        self.integers = Integers()

    def vector(self, access: Node, axis: int) -> int:
        """Most neighbours along an axis of a tile that one access moves together.

        1 where elements are neighbours and nothing more is known, 0 where they are not.
        """
        tile = access.tensor if access.op == "load" else access.args[1].tensor
        most = VECTOR_BYTES // tile.dtype.bytes if size_of(tile, axis) > 1 else 0
        while most and (size_of(tile, axis) % most or not self._is_run(access, axis, most)):
            most //= 2
        return most

    def _is_run(self, access: Node, axis: int, group: int) -> bool:
        """Whether each group lies side by side in memory, aligned, and is there or not as one."""
        memory = access.args[0].tensor
        index, mask, _ = access_parts(access)
        if all(i.tensor.rank == 0 for i in index):
            is_whole = mask is None or self.is_constant(mask, axis, group)
            return is_whole and self._is_block_run(access, axis, group)
        step, divisor = 0, 0
        for place, stride in zip(index, strides_of(memory), strict=True):
            found = self.run(place, axis, group)
            if found is None:
                return False
            step += found[0] * stride
            divisor = math.gcd(divisor, found[1] * stride)
        if step != 1 or divisor % group:
            return False
        return mask is None or self.is_constant(mask, axis, group)

    def _is_block_run(self, access: Node, axis: int, group: int) -> bool:
        """Of a block at scalar indices, whose last axes are those of the memory."""
        memory = access.args[0].tensor
        tile = access.tensor if access.op == "load" else access.args[1].tensor
        if axis != tile.rank - 1:
            return False
        index, _, _ = access_parts(access)
        strides = strides_of(memory)
        divisor = self.integers.divisor(index[-1])
        for i, (place, stride) in enumerate(zip(index[:-1], strides, strict=False)):
            moves = i >= memory.rank - tile.rank and size_of(tile, i - memory.rank) > 1
            divisor = math.gcd(divisor, stride if moves else self.integers.divisor(place) * stride)
        ends_whole = not access.attrs.get("clip") or size_of(memory, -1) % group == 0
        return divisor % group == 0 and ends_whole

    def is_constant(self, mask: Node, axis: int, group: int) -> bool:
        """Whether a mask is one in each group."""
        if group == 1 or not mask.tensor.rank:
            return True
        if mask.op == "broadcast":
            axes: Sequence[int] = mask.attrs["axes"]
            return axis not in axes or self.is_constant(mask.args[0], axes.index(axis), group)
        if mask.op in ("and", "or", "not"):
            return all(self.is_constant(a, axis, group) for a in mask.args)
        if mask.op not in ("lt", "ge", "gt", "le", "eq", "ne"):
            return False
        runs = [self.run(a, axis, group) if a.dtype.is_integer else None for a in mask.args]
        first, second = runs if mask.op not in MIRRORED else runs[::-1]
        if first is None or second is None:
            return False
        if first[0] == second[0] == 0:
            return True
        aligned = not (first[1] % group or second[1] % group)
        return mask.op not in ("eq", "ne") and second[0] == 0 and first[0] == 1 and aligned

    def run(self, node: Node, axis: int, group: int) -> Run | None:
        """Step and divisor of an integer tile along an axis."""
        if not node.tensor.rank:
            return 0, self.integers.divisor(node)
        if node.op == "iota":
            return (1, group) if int(node.attrs["axis"]) == axis else (0, 1)
        if node.op == "broadcast":
            axes: Sequence[int] = node.attrs["axes"]
            source = node.args[0]
            if axis in axes:
                return self.run(source, axes.index(axis), group)
            return 0, self.integers.divisor(source)
        if converts(node) and node.args[0].dtype.is_integer:
            return self.run(node.args[0], axis, group)
        if node.op in ("add", "sub", "mul", "div", "rem"):
            runs = [self.run(a, axis, group) for a in node.args]
            if runs[0] is not None and runs[1] is not None:
                return self._combined(node, runs[0], runs[1], group)
        return None

    def _combined(self, node: Node, first: Run, second: Run, group: int) -> Run | None:
        if node.op in ("add", "sub"):
            sign = 1 if node.op == "add" else -1
            return first[0] + sign * second[0], math.gcd(first[1], second[1])
        if node.op == "mul" and first[0] == second[0] == 0:
            return 0, first[1] * second[1]
        if node.op == "mul" and first[0] == 0:
            first, second, factor = second, first, self._number(node.args[0])
        else:
            factor = self._number(node.args[1])
        if second[0] or factor is None or factor <= 0:
            return None
        if node.op == "mul":
            return first[0] * factor, first[1] * factor
        if first[0] == 0:
            return 0, 1
        if first[0] != 1 or first[1] % group or factor % group:
            return None
        return (0, 1) if node.op == "div" else (1, math.gcd(first[1], factor))

    def _number(self, node: Node) -> int | None:
        found = self.integers.range(node)
        return found[0] if found is not None and found[0] == found[1] else None


def size_of(type_: TensorType, axis: int) -> int:
    """The extent of an axis."""
    return int(type_.shape[axis])  # pyright: ignore[reportArgumentType]


def sizes_of(type_: TensorType) -> tuple[int, ...]:
    """The extents of all axes."""
    return tuple(size_of(type_, i) for i in range(type_.rank))


def strides_of(memory: TensorType) -> list[int]:
    """Elements from one place to the next, along each axis of an array in memory."""
    sizes = sizes_of(memory)
    return [math.prod(sizes[i + 1 :]) for i in range(len(sizes))]
