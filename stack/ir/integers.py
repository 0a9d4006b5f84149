"""Range and divisibility analysis of integers in a kernel."""

from __future__ import annotations

import math

import numpy as np

from stack.ir.node import Node
from stack.ir.types import TensorType

Range = tuple[int, int]
INT32 = (-(2**31), 2**31 - 1)
COMBINED = ("add", "sub", "mul", "min", "max", "div", "rem", "and")  # binary ops of `combine`


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
