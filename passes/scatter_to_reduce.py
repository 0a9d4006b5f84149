"""scatter_to_reduce: turn scatters with affine indices into reductions.

Suppose the index of an update is affine in its position, `p = s * j + c * i + ...` with s = 1 or
-1. Then an update for the index p on line i is at `j = s * (p - c * i - ...)` and nowhere else. So
the result reads each line at that position and reduces over the lines. Beyond the ends of a line it
reads the neutral element. A line may be clipped: at its two bounds all updates beyond are reduced
too. The gradient of a table that is read at the distance of two positions is such a sum along
diagonals. Sums then have a fixed order, and no element waits for another.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from stack.ir import ops
from stack.ir.axes import LETTERS, Index, parse_rule
from stack.ir.bounds import INT32
from stack.ir.builder import Builder, constant, filled, make, padded, spread_by_name
from stack.ir.dim import Dim, add, mul, substitute, symbol
from stack.ir.func import Func
from stack.ir.node import Node
from stack.ir.space import identity
from stack.ir.traits import converts, extremum, signs
from stack.ir.types import I32, TensorType
from stack.passes.positions.index_maps import affine, slope
from stack.rewrite.engine import Scope, on, rewrite
from stack.rewrite.log import Log
from stack.rewrite.passes import Pass

MOST = 4  # most length of the result's axis, relative to a line of updates
KINDS = {"add": "sum", "mul": "prod", "max": "max", "min": "min"}  # of scatters to reductions


@dataclass(frozen=True)
class ScatterToReduce(Pass, needs=("scatter",)):
    """Reduce along lines if a scatter's index is affine in positions."""

    def run(self, func: Func, log: Log) -> Func:
        return rewrite(func, RULES, log)


@dataclass(frozen=True)
class _Line:
    """The index of a scatter as a clipped affine function of a position in the updates.

    `slopes`: the coefficient of each axis; `start`: the index at position 0; `low`, `high`: the
    bounds to which it is clipped, or None.
    """

    slopes: Mapping[str, int]
    start: int
    low: int | None = None
    high: int | None = None

    def range(self, sizes: Mapping[str, int]) -> tuple[int, int]:
        """Returns the least and the greatest index, before clipping."""
        ends = [c * (sizes[n] - 1) for n, c in self.slopes.items()]
        return self.start + sum(min(0, e) for e in ends), self.start + sum(max(0, e) for e in ends)

    def reach(self, sizes: Mapping[str, int], places: int) -> tuple[int, int]:
        """Returns the first and the last index that updates reach, after clipping, along an axis of
        `places` elements."""
        lowest, highest = self.range(sizes)
        first, last = max(0, lowest), min(places - 1, highest)
        if self.low is not None:
            first, last = max(first, self.low), max(last, self.low)
        if self.high is not None:
            first, last = min(first, self.high), min(last, self.high)
        return first, last

    def moved(self, by: int) -> _Line:
        """Returns the line with `by` added to each index, and to its clipping bounds."""
        low, high = (None if b is None else b + by for b in (self.low, self.high))
        return _Line(self.slopes, self.start + by, low, high)

    def along(self, name: str) -> _Line:
        """Solves index = line(position) for the position along axis `name`, whose slope is 1 or -1.
        Returns its affine function of the other axes, without the term of the index, which the
        caller adds."""
        s = self.slopes[name]
        others = {n: -s * c for n, c in self.slopes.items() if n != name}
        return _Line(others, -s * self.start)


@on("scatter")
def reduce_lines(node: Node, op: Builder, scope: Scope) -> Node | None:
    """scatter(x, c i + s j + b, u) is x + sum_i u[i, s (p - c i - b)]."""
    x, *indices, updates = node.args
    kind = str(node.attrs["kind"])
    rule = parse_rule(node.attrs["rule"])
    if len(indices) != 1 or kind not in KINDS:
        return None
    result = [a.names[0] for a in rule.inputs[0]]
    place = next(a.names[0] for a in rule.inputs[0] if a.mark == "!")
    index, own = ([a.names[0] for a in operand] for operand in rule.inputs[1:])
    if place in own or len(set(own)) != len(own):
        return None
    sizes: dict[str, int] = {}
    for names, arg in ((result, x), (own, updates)):
        for name, size in zip(names, arg.shape, strict=True):
            if not isinstance(size, int) or size == 0:
                return None
            sizes[name] = size
    line = _line(indices[0], index, sizes)
    if line is None:
        return None
    units = [n for n in index if n not in result and abs(line.slopes[n]) == 1]
    unit = max(reversed(units), key=lambda n: sizes[n], default=None)
    if unit is None:
        return None
    first, last = line.reach(sizes, sizes[place])
    line, beyond = line.moved(-first), sizes[place] - 1 - last
    sizes[place] = last - first + 1
    if sizes[place] < 1:
        return None
    lines = [n for n in own if n not in result and n != unit and sizes[n] > 1]
    if lines and sizes[place] > MOST * sizes[unit]:
        return None
    none = identity(KINDS[kind], updates.dtype)
    fill = constant(none, updates.dtype)
    read = _read(updates, own, line, unit, place, sizes, none)
    if read is None:
        return None
    total = _reduced(read, [place if n == unit else n for n in own], result, kind)
    for bound, inside in ((line.low, "gt"), (line.high, "lt")):
        if bound is not None:
            is_met = _compared("eq", indices[0], bound + first)
            is_met = spread_by_name(is_met, index, own, updates.shape)
            met = make("select", (is_met, updates, filled(fill, updates)))
            ended = _reduced(met, own, result, kind)
            ended = spread_by_name(ended, [n for n in result if n != place], result, total.shape)
            type_ = TensorType(I32, total.shape)
            places = make("iota", (), {"axis": result.index(place)}, hint=type_)
            total = make("select", (_compared(inside, places, bound), total, filled(fill, total)))
            total = make("select", (_compared("eq", places, bound), ended, total))
    return make(kind, (x, _longer(total, none, result.index(place), first, beyond)))


def _longer(value: Node, fill: float, axis: int, before: int, after: int) -> Node:
    """Returns a value with `before` and `after` elements `fill` added at both ends of an axis."""
    low, high = ([e if i == axis else 0 for i in range(value.tensor.rank)] for e in (before, after))
    return padded(value, low, high, fill)


def _reduced(value: Node, names: Sequence[str], result: Sequence[str], kind: str) -> Node:
    """Reduces a value over those of its axes, named in `names`, that the list `result` lacks.
    Returns it with the other axes in the order of `result`."""
    axes = tuple(i for i, n in enumerate(names) if n not in result)
    total = make("reduce", (value,), {"kind": KINDS[kind], "axes": axes}) if axes else value
    kept = [n for n in names if n in result]
    order = tuple(kept.index(n) for n in result if n in kept)
    return make("transpose", (total,), {"perm": order})


def _compared(op: str, value: Node, bound: int) -> Node:
    return make(op, (value, filled(constant(bound, value.dtype), value)))


def _line(index: Node, names: Sequence[str], sizes: Mapping[str, int]) -> _Line | None:
    """Returns the index of a scatter, an integer array, as an affine function of its axes'
    positions, perhaps with clipping bounds. None if it is no such function."""
    iter_vars = {n: symbol(n, 0, max(sizes[n] - 1, 0)) for n in names}
    found = _clipped(index, tuple(iter_vars[n] if sizes[n] > 1 else 0 for n in names))
    if found is None:
        return None
    value, low, high = found
    slopes: dict[str, int] = {}
    for name in names:
        grown = slope(value, name) if sizes[name] > 1 else 0
        if not isinstance(grown, int):
            return None
        slopes[name] = grown
    start = substitute(value, dict.fromkeys(names, 0))
    if not isinstance(start, int):
        return None
    straight: Dim = start
    for name in names:
        straight = add(straight, mul(slopes[name], iter_vars[name]))
    if straight != value:
        return None
    lowest, highest = _Line(slopes, start).range(sizes)
    return _Line(
        slopes,
        start,
        None if low is None or low <= lowest else low,
        None if high is None or high >= highest else high,
    )


def _clipped(node: Node, index: Index) -> tuple[Dim, int | None, int | None] | None:
    """Returns the element of an integer array at an index as a symbolic expression, and its lower
    and upper clipping bounds (None for no bound). None if it is no affine expression."""
    value = affine(node, index)
    if value is not None:
        return value, None, None
    if node.dtype.kind != "i" or node.dtype.bits < 32:
        return None  # narrow integers wrap
    if ops.is_view(node) or converts(node):
        return _clipped(node.args[0], ops.pull(node, index)[0])
    terms, sign = signs(node), extremum(node)
    if not terms and not sign:
        return None
    left, right = (affine(a, index if a.tensor.rank else ()) for a in node.args)
    number = right if isinstance(right, int) else left
    if not isinstance(number, int) or (terms == (1, -1) and number is not right):
        return None
    inner = node.args[0] if number is right else node.args[1]
    found = _clipped(inner, index)
    if found is None:
        return None
    line, low, high = found
    if terms:
        by = number * terms[1]
        low, high = (None if b is None else b + by for b in (low, high))
        return add(line, by), low, high
    pick = max if sign > 0 else min
    low, high = (None if b is None else pick(b, number) for b in (low, high))
    if sign > 0:
        return line, number if low is None else low, high
    return line, low, number if high is None else high


def _read(
    updates: Node,
    own: Sequence[str],
    line: _Line,
    unit: str,
    place: str,
    sizes: Mapping[str, int],
    fill: float,
) -> Node | None:
    """Returns a gather of the updates along axis `unit`, in which the index has slope 1 or -1.

    For each index along `place`, it reads the update that goes there, or `fill`. None if the padded
    axis does not fit into 32-bit indices.
    """
    at = line.along(unit)
    sign = line.slopes[unit]
    low, high = _Line({**at.slopes, place: sign}, at.start).range(sizes)
    before, after = max(0, -low), max(0, high - (sizes[unit] - 1))
    if before + sizes[unit] + after > INT32[1]:
        return None
    longer = _longer(updates, fill, own.index(unit), before, after)
    moving = [n for n, c in at.slopes.items() if c]
    shape = tuple(sizes[n] for n in (*moving, place))
    type_ = TensorType(I32, shape)
    total = make("broadcast", (constant(at.start + before, I32),), {"axes": ()}, hint=type_)
    for i, c in enumerate((*(at.slopes[n] for n in moving), sign)):
        steps = make("iota", (), {"axis": i}, hint=type_)
        factor = make("broadcast", (constant(c, I32),), {"axes": ()}, hint=type_)
        total = make("add", (total, make("mul", (steps, factor))))
    letters = dict(zip(dict.fromkeys([*own, place]), LETTERS, strict=False))
    source = " ".join(letters[n] + ("!" if n == unit else "") for n in own)
    picked = " ".join(letters[n] for n in (*moving, place))
    made = " ".join(letters[place if n == unit else n] for n in own)
    return make("gather", (longer, total), {"rule": f"{source}, {picked} -> {made}"})


RULES = (reduce_lines,)
