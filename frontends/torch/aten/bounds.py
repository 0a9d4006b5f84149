"""Bounds of indices and divisors, and checks of wrong ones.

The IR's gather and scatter need indices in range. There are three cases, cheapest first. If the
range of the index is known from its computation (`iota`, `argreduce`, arithmetic on them, a
condition: `0 <= f & f < 56` bounds `cast(f)`), nothing is needed. If the index is an input of the
program, its smallest and largest value are checked before a call, and IndexError is raised as in
eager. Any other index is clamped, which keeps memory accesses safe, and the program returns an
additional bool that is false if clamping changed anything; it is checked after the run. A bool that
depends on no data is computed during the import: if it is true, it is not returned. Integer
divisors are also checked after the run, if eager would raise. Bools whose errors have one text are
joined: a table that is read 26 times has one bool.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import reduce
from typing import Any

from stack.frontends.torch.aten.lowering import Context, IndexCheck, Promise
from stack.ir.dim import Dim, add, equal, less_equal, maximum, minimum, mul
from stack.ir.interpreter import evaluated
from stack.ir.node import Node
from stack.ir.types import TensorType

Bounds = tuple[Dim, Dim]

_SAME = frozenset({"reshape", "transpose", "broadcast", "slice", "reverse", "cast"})


def value_bounds(node: Node, depth: int = 12) -> Bounds | None:
    """Returns inclusive bounds of all elements, or None."""
    if depth == 0 or not node.dtype.is_integer:
        return None
    args = [a for a in node.args if a.type is not None]
    if node.op == "const":
        array = node.attrs["value"].array
        return (int(array.min()), int(array.max())) if array.size else (0, 0)
    if node.op == "size":
        return node.attrs["value"], node.attrs["value"]
    if node.op == "iota":
        return 0, add(node.shape[node.attrs["axis"]], -1)
    if node.op == "argreduce":
        return 0, add(args[0].shape[node.attrs["axis"]], -1)
    if node.op == "item" and args[0].op == "sort":
        return value_bounds(args[0].args[node.attrs["index"]], depth - 1)
    if node.op == "select":
        where = bounds_where(args[0], args[1])
        return _union([where or value_bounds(args[1], depth - 1), value_bounds(args[2], depth - 1)])
    if node.op in ("concat", "pad"):
        return _union([value_bounds(a, depth - 1) for a in args])
    if node.op == "gather":
        return value_bounds(args[0], depth - 1)
    if node.op == "cast" and args[0].dtype.kind == "b":
        return 0, 1
    if node.op in _SAME:
        return value_bounds(args[0], depth - 1)
    return _arithmetic(node, depth)


def _union(parts: list[Bounds | None]) -> Bounds | None:
    known = [p for p in parts if p is not None]
    if len(known) != len(parts):
        return None
    low, high = known[0]
    for other_low, other_high in known[1:]:
        low, high = minimum(low, other_low), maximum(high, other_high)
    return low, high


def _arithmetic(node: Node, depth: int) -> Bounds | None:
    if node.op not in ("add", "sub", "mul", "max", "min", "div", "rem"):
        return None
    left, right = (value_bounds(a, depth - 1) for a in node.args)
    if node.op in ("max", "min") and (left is None or right is None):
        return None
    if left is None or right is None:
        return _remainder(right) if node.op == "rem" else None
    if node.op == "add":
        return add(left[0], right[0]), add(left[1], right[1])
    if node.op == "sub":
        return add(left[0], mul(right[1], -1)), add(left[1], mul(right[0], -1))
    if node.op == "max":
        return maximum(left[0], right[0]), maximum(left[1], right[1])
    if node.op == "min":
        return minimum(left[0], right[0]), minimum(left[1], right[1])
    if less_equal(0, left[0]) and less_equal(0, right[0]):
        if node.op == "mul":
            return mul(left[0], right[0]), mul(left[1], right[1])
        if node.op == "div" and right[0] == right[1] and isinstance(right[0], int) and right[0]:
            return left[0] // right[0], left[1] // right[0]
        if node.op == "rem" and less_equal(1, right[0]):
            return 0, minimum(left[1], add(right[1], -1))
    return None


def _remainder(divisor: Bounds | None) -> Bounds | None:
    if divisor is None or not less_equal(1, divisor[0]):
        return None
    return add(1, mul(divisor[1], -1)), add(divisor[1], -1)


def in_range(cx: Context, index: Node, size: Dim, what: str, wraps: bool = False) -> Node:
    """Returns an index that is in `[0, size)` for every argument that eager accepts.

    Other arguments raise an error before the call if the index is an input; an index that is
    computed from data is clamped, and the error is raised after the run.

    Args:
        wraps: if true, negative values count from the end.
    """
    bounds = value_bounds(index)
    low: Dim = mul(size, -1) if wraps else 0
    high = add(size, -1)
    safe = bounds is not None and less_equal(low, bounds[0]) and less_equal(bounds[1], high)
    if not safe and not cx.trusted:
        source, besides = _source(index)
        if source is not None and not cx.is_inside:
            cx.checks.append(IndexCheck(source, low, high, besides, what))
        else:
            index = _clamp(cx, index, low, high, what)
    if wraps and not (bounds is not None and less_equal(0, bounds[0])):
        negative = cx.elementwise("lt", index, 0)
        index = cx.select(negative, cx.elementwise("add", index, size), index, index.dtype)
    return index


def _clamp(cx: Context, index: Node, low: Dim, high: Dim, what: str) -> Node:
    inside = cx.elementwise("max", index, low, dtype=index.dtype)
    inside = cx.elementwise("min", inside, high, dtype=index.dtype)
    holds = cx.reduce("and", cx.elementwise("eq", inside, index), range(index.tensor.rank))
    if bool(evaluated(holds, "iufb")):
        return inside  # still clamped: a kernel may round floats in another way
    text = f"index out of range: {what} reads at {low} to {high}"
    cx.promises.append(Promise(holds, "IndexError", text))
    return inside


def joined_promises(cx: Context) -> list[Promise]:
    """Returns the conditions to check after a run, one for all that raise the same error."""
    first = {p.holds: p for p in reversed(cx.promises)}  # of equal conditions
    found: dict[tuple[str, str], list[Node]] = {}
    for promise in reversed(first.values()):
        found.setdefault((promise.error, promise.text), []).append(promise.holds)
    return [Promise(_all(cx, held), *said) for said, held in found.items()]


def _all(cx: Context, conditions: Sequence[Node]) -> Node:
    """Returns a bool scalar: whether all of some bool scalars are true.

    Those that test arrays of one shape become one test of one array: one kernel for all.
    """
    if len(conditions) == 1:
        return conditions[0]
    b = cx.b

    def both(x: Node, y: Node) -> Node:
        return b.op("and", [x, y])

    b.loc = tuple(dict.fromkeys(line for c in conditions for line in b.locs.get(c, ())))
    alike: dict[tuple[Dim, ...], list[Node]] = {}
    for condition in conditions:
        is_whole = condition.op == "reduce" and condition.attrs["kind"] == "and"
        tested = condition.args[0] if is_whole else condition
        alike.setdefault(tested.shape, []).append(tested)
    each = [reduce(both, held) for held in alike.values()]
    return reduce(both, (cx.reduce("and", test, range(test.tensor.rank)) for test in each))


def _source(index: Node) -> tuple[Node | None, tuple[int, ...]]:
    """Returns the parameter that an index is read from, and values that the program replaces.

    Looks through ops that move elements, and through `where(x != ignored, x, 0)`, which replaces
    `ignored`. The parameter is None if the index is computed in another way.
    """
    besides: list[int] = []
    while True:
        if index.op == "param":
            return index, tuple(besides)
        # not through a slice: elements outside it may have any value
        if index.op in _SAME and index.op != "slice" and index.args[0].dtype.is_integer:
            index = index.args[0]
            continue
        ignored = _ignored(index)
        if ignored is None:
            return None, ()
        besides.append(ignored)
        index = index.args[1]


def _ignored(node: Node) -> int | None:
    """Returns the number n of a node `select(x != n, x, constant)`; None for other nodes."""
    if node.op != "select" or node.args[0].op != "ne" or node.args[2].op != "const":
        return None
    left, right = node.args[0].args
    if left is not node.args[1] or right.op != "const" or right.tensor.rank:
        return None
    return int(right.attrs["value"].array)


def expect(cx: Context, test: Node, text: str) -> None:
    """Adds a condition that is checked after a run: RuntimeError unless `test` is true everywhere.

    Only on a CPU, where eager raises too.
    """
    is_cpu = not any(f.device.type != "cpu" for f in cx.fakes if hasattr(f, "device"))
    if is_cpu and not cx.trusted and not equal(test.tensor.size, 0):
        all_hold = cx.reduce("and", test, range(test.tensor.rank))
        cx.promises.append(Promise(all_hold, "RuntimeError", text))


def nonzero(cx: Context, divisor: Any) -> Any:
    """Returns the divisor of an op unchanged; if it is an integer, adds a check that it is not 0.

    The check raises where eager raises, after a run on a CPU.
    """
    want: TensorType = cx.want
    if not want.dtype.is_integer or want.size == 0:
        return divisor
    node = cx.scalar(divisor, want.dtype)
    bounds = value_bounds(node)
    if bounds is None or not (less_equal(1, bounds[0]) or less_equal(bounds[1], -1)):
        expect(cx, cx.elementwise("ne", node, 0), "ZeroDivisionError")
    return divisor


_MIRRORED = {"lt": "gt", "le": "ge", "gt": "lt", "ge": "le"}


def bounds_where(condition: Node, value: Node) -> tuple[int, int] | None:
    """Returns inclusive bounds of an integer that a condition implies; None unless it has both."""
    source = value.args[0] if value.op == "cast" else value
    if source.dtype.kind not in "iuf":
        return None
    low: int | None = None
    high: int | None = None
    for how, number in _comparisons(condition, source):
        if how in ("ge", "gt"):
            # casts truncate, which preserves the order
            least = math.trunc(number) + (how == "gt" and source.dtype.is_integer)
            low = least if low is None else max(low, least)
        else:
            most = math.trunc(number)
            is_whole_step = number == most and (source.dtype.is_integer or number >= 1)
            most -= how == "lt" and is_whole_step
            high = most if high is None else min(high, most)
    return None if low is None or high is None else (low, high)


def _comparisons(condition: Node, source: Node) -> Iterator[tuple[str, float]]:
    """Yields the comparisons of a value with a number that a condition implies."""
    if condition.op == "and":
        for part in condition.args:
            yield from _comparisons(part, source)
    elif condition.op in _MIRRORED:
        left, right = condition.args
        for one, other, how in (
            (left, right, condition.op),
            (right, left, _MIRRORED[condition.op]),
        ):
            if one is source and other.op == "const" and not other.tensor.rank:
                number = float(other.attrs["value"].array)
                if math.isfinite(number):
                    yield how, number
