"""diagonals: scatters to places that are known lines of positions become reductions.

Where the index of an update is a line of its positions, `p = s * j + c * i + ...` with s = 1 or -1,
an update for the place p on line i sits at `j = s * (p - c * i - ...)` and nowhere else. So the
result reads each line at that place and reduces over the lines; past the ends of a line lies what
changes nothing. The gradient of a table that is read at the distance of two positions is such a
sum along diagonals. Sums have an order then, and no element waits for another.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from stack.ir.axes import LETTERS, parse_rule
from stack.ir.builder import Builder, constant, make
from stack.ir.dim import Dim, add, mul, substitute, symbol
from stack.ir.node import Func, Node
from stack.ir.space import identity
from stack.ir.types import I32, TensorType
from stack.passes.affine import affine, slope
from stack.rewrite.engine import Scope, on, rewrite
from stack.rewrite.log import Log
from stack.rewrite.passes import Pass

MAX_PLACES = (1 << 31) - 1  # places are computed in 32 bits
MOST = 4  # how many times as long as a line of updates the line that takes them may be
KINDS = {"add": "sum", "mul": "prod", "max": "max", "min": "min"}  # of scatters to reductions
COMBINE = {"add": "add", "mul": "mul", "max": "max", "min": "min"}


@dataclass(frozen=True)
class Diagonals(Pass):
    """Reduce along lines where a scatter would go to places that positions tell."""

    name: ClassVar[str] = "diagonals"

    def run(self, func: Func, log: Log) -> Func:
        return rewrite(func, RULES, log)


@dataclass(frozen=True)
class _Line:
    """An index as a line: the slope of each axis of the updates, and where it begins."""

    slopes: Mapping[str, int]
    start: int

    def along(self, name: str) -> _Line:
        """Where on this axis an update for a place sits; its slope for the place is not kept."""
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
    summed = [n for n in own if n not in result and n != unit]
    if any(sizes[n] > 1 for n in summed) and sizes[place] > MOST * sizes[unit]:
        return None
    read = _read(updates, own, line, unit, place, sizes, identity(KINDS[kind], updates.dtype))
    if read is None:
        return None
    names = [place if n == unit else n for n in own]
    axes = tuple(i for i, n in enumerate(names) if n in summed)
    total = make("reduce", (read,), {"kind": KINDS[kind], "axes": axes}) if axes else read
    kept = [n for n in names if n not in summed]
    if kept != result:
        total = make("transpose", (total,), {"perm": tuple(kept.index(n) for n in result)})
    return make(COMBINE[kind], (x, total))


def _line(index: Node, names: Sequence[str], sizes: Mapping[str, int]) -> _Line | None:
    """An integer node as a line of its positions; None where it is none."""
    marks = {n: symbol(n, 0, max(sizes[n] - 1, 0)) for n in names}
    value = affine(index, tuple(marks[n] if sizes[n] > 1 else 0 for n in names))
    if value is None:
        return None
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
        straight = add(straight, mul(slopes[name], marks[name]))
    return _Line(slopes, start) if straight == value else None


def _read(
    updates: Node,
    own: Sequence[str],
    line: _Line,
    unit: str,
    place: str,
    sizes: Mapping[str, int],
    fill: object,
) -> Node | None:
    """The updates with their axis `unit` read where those for each place sit."""
    at = line.along(unit)
    sign = line.slopes[unit]
    reach = {n: c * (sizes[n] - 1) for n, c in at.slopes.items()}
    reach[place] = sign * (sizes[place] - 1)
    low = at.start + sum(min(0, r) for r in reach.values())
    high = at.start + sum(max(0, r) for r in reach.values())
    before, after = max(0, -low), max(0, high - (sizes[unit] - 1))
    if before + sizes[unit] + after > MAX_PLACES:
        return None
    axis = own.index(unit)
    ends = [(before, after) if i == axis else (0, 0) for i in range(len(own))]
    longer = make(
        "pad",
        (updates, constant(fill, updates.dtype)),
        {
            "low": tuple(e[0] for e in ends),
            "high": tuple(e[1] for e in ends),
            "interior": (0,) * len(own),
        },
    )
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
