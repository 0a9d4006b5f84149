"""Ranges of integers in kernels, and bounds checks of memory accesses.

`Integers` knows which values an index may take, and what divides them. `Bounds` knows which values
an index certainly takes, so it finds accesses that are certainly out of bounds.

An access is certainly wrong only if the range of an index is known exactly: constants, loop
indices, and sums of them. Other indices depend on data or on masks; the interpreter checks those at
run time with `check_index`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from stack.ir.axes import parse_rule
from stack.ir.dim import Dim
from stack.ir.node import Node
from stack.ir.types import TensorType

Range = tuple[int, int]
INT32 = (-(2**31), 2**31 - 1)
COMBINED = ("add", "sub", "mul", "min", "max", "div", "rem", "and")  # binary ops of `combine`
# memory, indices of all its axes, and the extents of the block that begins there
Access = tuple[TensorType, Sequence[Node], tuple[Dim, ...]]
LARGEST_LOCAL = 1 << 20  # bytes of one buffer on the stack of a thread


class Integers:
    """Ranges and divisors of index arithmetic, cached by node."""

    def __init__(self) -> None:
        self.ranges: dict[Node, Range | None] = {}
        self.divisors: dict[Node, int] = {}

    def is_small(self, node: Node) -> bool:
        """True if the possible values of an i64 node and of all its operands fit in 32 bits."""
        found = self.range(node)
        return found is not None and INT32[0] <= found[0] and found[1] <= INT32[1]

    def may_pass(self, start: Node, extent: int, size: int) -> bool:
        """True if `extent` elements from index `start` on may go past the end of `size`."""
        known = self.range(start)
        return known is None or known[1] + extent > size

    def range(self, node: Node) -> Range | None:
        """The minimum and maximum value, None if unknown."""
        if node not in self.ranges:
            is_known = isinstance(node.type, TensorType) and node.dtype.is_integer
            found = self._range(node) if is_known else None
            if found is not None and not _fits(found, node):
                found = None  # it may have wrapped
            self.ranges[node] = found
        return self.ranges[node]

    def _range(self, node: Node) -> Range | None:
        if node.op == "const" and not node.tensor.rank:
            value = int(node.attrs["value"].array)
            return value, value
        if node.op == "var":
            return (0, max(int(node.attrs["extent"]) - 1, 0)) if "extent" in node.attrs else None
        if node.op == "iota":
            size = node.shape[int(node.attrs["axis"])]
            return (0, max(size - 1, 0)) if isinstance(size, int) else None
        if node.op in ("broadcast", "cast", "transpose", "reshape"):
            source = node.args[0]
            return self.range(source) if source.dtype.is_integer else None
        parts = [self.range(a) for a in node.args[node.op == "select" :]]
        if len(parts) != 2 or parts[0] is None or parts[1] is None:
            return None
        return combine(node.op, parts[0], parts[1])

    def divisor(self, node: Node) -> int:
        """Returns a number that divides every possible value of a node; 0 if it is always 0."""
        if node not in self.divisors:
            self.divisors[node] = self._divisor(node)
        return self.divisors[node]

    def _divisor(self, node: Node) -> int:
        if node.op == "const" and not node.tensor.rank:
            return abs(int(np.asarray(node.attrs["value"].array)))
        if node.op == "var" and node.attrs.get("extent") == 1:
            return 0
        if (
            node.op in ("broadcast", "cast", "transpose", "reshape")
            and node.args[0].dtype.is_integer
        ):
            return self.divisor(node.args[0])
        if node.op in ("add", "sub", "min", "max"):
            return math.gcd(*(self.divisor(a) for a in node.args))
        if node.op == "select":
            return math.gcd(*(self.divisor(a) for a in node.args[1:]))
        if node.op == "mul":
            return self.divisor(node.args[0]) * self.divisor(node.args[1])
        if node.op == "rem":
            return math.gcd(*(self.divisor(a) for a in node.args))
        return 1


def _fits(found: Range, node: Node) -> bool:
    limits = np.iinfo(node.dtype.numpy)
    return int(limits.min) <= found[0] and found[1] <= int(limits.max)


def combine(op: str, a: Range, b: Range) -> Range | None:
    """Returns the range of the results of op `op` on integers of two ranges; None for ops that this
    function does not know.
    """
    if op == "add":
        return a[0] + b[0], a[1] + b[1]
    if op == "sub":
        return a[0] - b[1], a[1] - b[0]
    if op == "mul":
        ends = [x * y for x in a for y in b]
        return min(ends), max(ends)
    if op in ("min", "max"):
        pick = min if op == "min" else max
        return pick(a[0], b[0]), pick(a[1], b[1])
    if op == "select":
        return min(a[0], b[0]), max(a[1], b[1])
    if op == "div" and b[0] > 0:
        ends = [_divided(x, y) for x in a for y in b]
        return min(ends), max(ends)
    if op == "and" and (a[0] >= 0 or b[0] >= 0):
        return 0, min(high for low, high in (a, b) if low >= 0)
    if op == "rem" and b[0] > 0:
        return (0 if a[0] >= 0 else max(a[0], 1 - b[1])), min(b[1] - 1, max(a[1], 0))
    return None


def _divided(x: int, y: int) -> int:
    """Returns the quotient rounded towards 0."""
    return x // y if x >= 0 else -(-x // y)


class Bounds:
    """Exact ranges of integers, cached by node."""

    def __init__(self) -> None:
        self.known: dict[Node, Range | None] = {}

    def exact(self, node: Node) -> Range | None:
        """Returns the smallest and largest integer that the elements of a node certainly take. None
        if they are not known exactly, or if the node has no integers.
        """
        if node not in self.known:
            is_integer = isinstance(node.type, TensorType) and node.dtype.is_integer
            self.known[node] = self._exact(node) if is_integer else None
        return self.known[node]

    def _exact(self, node: Node) -> Range | None:
        if node.op == "const":
            values: Any = node.attrs["value"].array
            return (int(values.min()), int(values.max())) if values.size else None
        if node.op == "var":
            extent = node.attrs.get("extent")
            return (0, extent - 1) if isinstance(extent, int) and extent > 0 else None
        if node.op == "iota":
            size = node.shape[int(node.attrs["axis"])]
            return (0, size - 1) if isinstance(size, int) and size > 0 else None
        if node.op in ("broadcast", "cast", "reshape", "transpose"):
            found = self.exact(node.args[0]) if node.args[0].dtype.is_integer else None
        elif node.op in ("add", "sub", "mul", "min", "max"):
            found = self._combined(node)
        else:
            return None
        limits = np.iinfo(node.dtype.numpy)
        is_there = found is not None and limits.min <= found[0] and found[1] <= limits.max
        return found if is_there else None

    def _combined(self, node: Node) -> Range | None:
        """Returns the exact range of a binary op, from the exact ranges of its operands. None if
        one is unknown, or if some pair of their limits may never occur together.

        All pairs occur if one operand is constant, or if both are scalars without common loop
        variables.
        """
        first, second = (self.exact(a) for a in node.args)
        if first is None or second is None:
            return None
        fixed = first[0] == first[1] or second[0] == second[1]
        if not fixed and (any(a.tensor.rank for a in node.args) or _shared(*node.args)):
            return None
        return combine(node.op, first, second)

    def outside(self, node: Node) -> str:
        """Describes the axis that an access of the node exceeds, with the range of its indices.
        Returns "" if no access is certainly out of bounds.
        """
        for memory, index, tile in accesses(node):
            for axis, (at, size) in enumerate(zip(index, memory.shape, strict=True)):
                found = self.exact(at)
                more = tile[axis - memory.rank] if axis >= memory.rank - len(tile) else 1
                if found is None or not isinstance(size, int) or not isinstance(more, int):
                    continue
                first, last = found[0], found[1] + more - 1
                if more and (first < 0 or last >= size):
                    return f"axis {axis} of {memory} is indexed from {first} to {last}"
        return ""


def _shared(a: Node, b: Node) -> bool:
    return not a.vars.isdisjoint(b.vars)


def accesses(node: Node) -> list[Access]:
    """The memory accesses of a node that certainly happen: each with the memory's type, the index
    operands and the shape of the accessed tile. Empty if a mask, `clip` or `drop` may skip
    elements.
    """
    if node.attrs.get("clip") or node.attrs.get("drop"):
        return []
    if node.op in ("load", "store"):
        first = 1 if node.op == "load" else 2
        memory = node.args[0].tensor
        index = node.args[first : first + memory.rank]
        if len(node.args) > first + memory.rank:
            return []
        tile = node.tensor if node.op == "load" else node.args[1].tensor
        return [(memory, index, () if any(i.tensor.rank for i in index) else tile.shape)]
    if node.op == "async_copy":
        return _copied(node)
    if node.op in ("gather", "scatter"):
        return _gathered(node)
    return []


def _copied(node: Node) -> list[Access]:
    target, source = node.args[0].tensor, node.args[1].tensor
    middle = 2 + target.rank
    end = middle + source.rank
    lanes = (int(node.attrs["lanes"]),)
    found: list[Access] = [(target, node.args[2:middle], lanes)]
    if len(node.args) == end:
        found.append((source, node.args[middle:end], lanes))
    return found


def _gathered(node: Node) -> list[Access]:
    """The access of a gather or scatter to its indexed axes, as if these were all axes of the
    memory. Empty if an index array has no elements.
    """
    rule = parse_rule(node.attrs["rule"])
    source = node.args[0].tensor
    sizes = [s for a, s in zip(rule.inputs[0], source.shape, strict=True) if a.mark == "!"]
    indices = node.args[1 : 1 + len(sizes)]
    if any(isinstance(size, int) and size == 0 for i in indices for size in i.shape):
        return []
    return [(TensorType(source.dtype, tuple(sizes)), indices, ())]


def check_index(place: Sequence[Any], shape: Sequence[int], what: str, mask: Any = None) -> None:
    """Raises IndexError if an index array, one for each axis of `shape`, is out of bounds where
    `mask` is true. `what` describes the access in the message.
    """
    arrays = [np.asarray(index) for index in place]
    if not all(held.size for held in arrays):
        return  # an empty access
    for axis, (held, size) in enumerate(zip(arrays, shape, strict=True)):
        wrong = (held < 0) | (held >= size)
        if not wrong.any():
            continue
        if mask is not None:
            wrong = wrong & mask
            if not wrong.any():
                continue
        seen = np.broadcast_to(held, wrong.shape)[wrong]
        raise IndexError(f"{what} leaves axis {axis} of {list(shape)}: index {int(seen.flat[0])}")
