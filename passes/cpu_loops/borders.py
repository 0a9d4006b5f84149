"""Where along the tile axis the guards of loads turn: between such borders they need no masks.

A guard compares a place of the tile with a number: from some lane on it holds, or no longer does.
Lanes are walked in parts that end at these borders. In each of them guards are known, so that
parts of a concatenation are plain copies, and no lane is read that another operand gives.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field, replace

from stack.ir.builder import Builder, constant
from stack.ir.kernel_ops import access_parts
from stack.ir.node import Node
from stack.ir.ops import algebra_of
from stack.ir.traits import (
    choice,
    connective,
    is_load,
    is_number,
    is_positions,
    multiplies,
    negates,
    number,
    repeats,
    signs,
)
from stack.ir.types import I64
from stack.passes.cpu_loops.chunk import plus, reachable

MOST_NODES = 2048  # of all parts: code grows with borders, and takes time to compile

Terms = Mapping[Node, int]  # a sum of scalars, each so many times


@dataclass(frozen=True)
class Part:
    """Chunks in which some guards are known.

    Attributes:
        start: the first lane.
        chunks: how many follow it, at most.
        width: lanes of each.
        known: guards that hold in all of them (True) or in none (False).
        limits: the first chunk and the one past the last; none where all are meant.
    """

    start: int
    chunks: int
    width: int
    known: Mapping[Node, bool] = field(default_factory=dict[Node, bool])
    limits: tuple[Node, Node] | None = None


@dataclass(frozen=True)
class Case:
    """Parts of a program, and whether it is this case: 1 or 0; None where there is no other."""

    parts: list[Part]
    times: Node | None = None


@dataclass(frozen=True)
class Border:
    """Where a guard turns.

    Attributes:
        guard: a comparison.
        rises: whether it holds from there on, or no longer does.
        moves: whether it turns at a lane; otherwise it is the same on all lanes of a program.
        at: that lane is this many past `terms`; otherwise it turns where `terms` are this many.
        terms: scalars, each so many times.
    """

    guard: Node
    rises: bool
    moves: bool
    at: int
    terms: frozenset[tuple[Node, int]]

    def side(self, is_past: bool) -> bool:
        """What the guard is on one side."""
        return self.rises == is_past


def run(start: int, end: int, width: int, known: Mapping[Node, bool] | None = None) -> list[Part]:
    """Lanes in chunks, and what is left; one chunk where only one is whole."""
    chunks = (end - start) // width
    if chunks <= 1:
        return [Part(start, 1, end - start, known or {})] if end > start else []
    parts = [Part(start, chunks, width, known or {})]
    return parts + run(start + chunks * width, end, width, known)


def cases_of(
    b: Builder, tiles: Sequence[Node], extent: int, width: int, lanes: int, inner: Set[Node]
) -> list[Case]:
    """All lanes in parts by the guards of some tiles, for each case of those alike on all lanes.

    Args:
        b: builds the borders that are no numbers.
        tiles: what is computed.
        extent: of the tile axis.
        width: lanes of a chunk.
        lanes: of a register; where no part fills one, one masked chunk is faster than many parts.
        inner: variables of loops inside of a chunk.
    """
    found = [border for g in _guards(tiles) if (border := _border(g, inner)) is not None]
    lanewise, uniform = (_alike([x for x in found if x.moves is moves]) for moves in (True, False))
    count = math.prod(len({x.at for x in group}) + 1 for group in (lanewise, uniform))
    work = [n for n in tiles if not (is_guard(n) or is_load(n) or choice(n))]
    parts = run(0, extent, width)
    if count * (len(work) + 2) > MOST_NODES:
        return [Case(parts)]
    if lanewise and not lanewise[0].terms:
        cut = _cut(lanewise, extent, width)
        parts = cut if max(part.width for part in cut) >= lanes else parts
    elif lanewise and extent > width:
        parts = _limited(b, lanewise, extent, width)
    return _in_cases(b, uniform, parts) if uniform else [Case(parts)]


def _alike(borders: Sequence[Border]) -> list[Border]:
    """Those that are known distances apart, as most are, in order."""
    if not borders:
        return []
    ((terms, _),) = Counter(x.terms for x in borders).most_common(1)
    return sorted((x for x in borders if x.terms == terms), key=lambda x: x.at)


def is_guard(node: Node) -> bool:
    """Whether a node is a comparison, or made of some."""
    return algebra_of(node).is_order or bool(connective(node)) or negates(node)


def _guards(tiles: Sequence[Node]) -> list[Node]:
    """The comparisons that masks of loads are made of."""
    pending = [mask for n in tiles if is_load(n) and (mask := access_parts(n)[1]) is not None]
    found: dict[Node, None] = {}
    while pending:
        node = pending.pop()
        if node in found:
            continue
        if algebra_of(node).is_order:
            found[node] = None
        elif is_guard(node) or repeats(node):
            pending.extend(node.args)
    return list(found)


def _border(guard: Node, inner: Set[Node]) -> Border | None:
    """Where a comparison turns; None where it does not do so once, at a known lane."""
    facts = algebra_of(guard)
    sides = [_linear(a) for a in guard.args]
    low, high = sides if facts.monotone[1] > 0 else reversed(sides)
    if low is None or high is None:
        return None
    lanes = high.lanes - low.lanes
    terms = {n: high.terms.get(n, 0) - low.terms.get(n, 0) for n in {**high.terms, **low.terms}}
    terms = {n: count for n, count in terms.items() if count}
    if abs(lanes) > 1 or not (lanes or terms) or any(not inner.isdisjoint(n.vars) for n in terms):
        return None
    # it holds where lanes * lane + terms + room > 0
    room = high.more - low.more + bool(facts.reflexive)
    sign = lanes or (1 if sum(terms.values()) >= 0 else -1)
    at = 1 - room if sign > 0 else room
    held = frozenset((n, (-lanes or sign) * count) for n, count in terms.items())
    return Border(guard, sign > 0, bool(lanes), at, held)


@dataclass(frozen=True)
class _Linear:
    """`lanes` times the lane, scalars, and a number."""

    lanes: int = 0
    terms: Terms = field(default_factory=dict[Node, int])
    more: int = 0

    def times(self, factor: int) -> _Linear:
        terms = {n: count * factor for n, count in self.terms.items()}
        return _Linear(self.lanes * factor, terms, self.more * factor)

    def plus(self, other: _Linear) -> _Linear:
        counts = {
            n: self.terms.get(n, 0) + other.terms.get(n, 0) for n in {**self.terms, **other.terms}
        }
        return _Linear(self.lanes + other.lanes, counts, self.more + other.more)


def _linear(node: Node) -> _Linear | None:
    """A place; None where it is data, whose sums may wrap."""
    if node.dtype is not I64:
        return None
    if is_number(node):
        return _Linear(more=int(number(node)))
    if is_positions(node):
        return _Linear(lanes=1)
    if repeats(node):
        return _linear(node.args[0])
    taken = signs(node)
    if len(node.args) == 2 and (taken or multiplies(node)):
        left, right = map(_linear, node.args)
        if left is None or right is None:
            return None
        if taken:
            return left.times(taken[0]).plus(right.times(taken[1]))
        for one, other in ((left, node.args[1]), (right, node.args[0])):
            if is_number(other):
                return one.times(int(number(other)))
    is_scalar = not node.tensor.rank and all(_is_place(n) for n in reachable([node]))
    return _Linear(terms={node: 1}) if is_scalar else None


def _is_place(node: Node) -> bool:
    """Whether a scalar is an index of a loop, or computed of such."""
    return "extent" in node.attrs or is_number(node) or (bool(node.args) and not is_load(node))


def _cut(borders: Sequence[Border], extent: int, width: int) -> list[Part]:
    """Borders that are numbers: parts are exact."""
    inside = sorted({x.at for x in borders if 0 < x.at < extent})
    parts: list[Part] = []
    for start, end in zip([0, *inside], [*inside, extent], strict=True):
        known = {x.guard: x.side(x.at <= start) for x in borders}
        parts += run(start, end, width, known)
    return parts


def _limited(b: Builder, borders: Sequence[Border], extent: int, width: int) -> list[Part]:
    """Borders that move with the program: of whole chunks, with those between where they turn."""
    chunks = extent // width
    terms = _in_order(borders[0].terms)
    is_even = math.gcd(*(count for _, count in terms)) % width == 0
    groups: list[list[Border]] = []
    for x in borders:
        if groups and x.at - groups[-1][-1].at < (1 if is_even and not x.at % width else width):
            groups[-1].append(x)
        else:
            groups.append([x])
    parts: list[Part] = []
    begin = constant(0, I64)
    for i, group in enumerate(groups):
        known = {x.guard: x.side(j < i) for j, other in enumerate(groups) for x in other}
        others = {g: held for g, held in known.items() if all(g is not x.guard for x in group)}
        lane = [_lane(b, terms, x.at, chunks * width) for x in (group[0], group[-1])]
        first = b.div(lane[0], width)
        parts.append(Part(0, chunks, width, known, (begin, first)))
        begin = first
        if not (is_even and all(x.at == group[0].at and not x.at % width for x in group)):
            begin = b.div(b.add(lane[1], width - 1), width)
            parts.append(Part(0, chunks, width, others, (first, begin)))
    known = {x.guard: x.side(True) for x in borders}
    parts.append(Part(0, chunks, width, known, (begin, constant(chunks, I64))))
    return parts + run(chunks * width, extent, width)


def _in_cases(b: Builder, borders: Sequence[Border], parts: Sequence[Part]) -> list[Case]:
    """Parts once for each case of guards that are the same on all lanes."""
    place = constant(0, I64)
    for node, count in _in_order(borders[0].terms):
        place = plus(b, place, _times(b, node, count))
    inside = sorted({x.at for x in borders})
    made: list[Case] = []
    for start, end in zip([None, *inside], [*inside, None], strict=True):
        known = {x.guard: x.side(start is not None and x.at <= start) for x in borders}
        tests = [] if start is None else [b.ge(place, start)]
        tests += [] if end is None else [b.lt(place, end)]
        is_case = tests[0] if len(tests) == 1 else b.op("and", tests)
        own = [replace(part, known={**part.known, **known}) for part in parts]
        made.append(Case(own, b.select(is_case, constant(1, I64), 0)))
    return made


def _times(b: Builder, node: Node, count: int) -> Node:
    return node if count == 1 else b.mul(node, count)


def _in_order(terms: frozenset[tuple[Node, int]]) -> list[tuple[Node, int]]:
    """In an order that does not change from run to run."""
    return sorted(terms, key=lambda item: (str(item[0].attrs.get("name", "")), item[1]))


def _lane(b: Builder, terms: Sequence[tuple[Node, int]], at: int, end: int) -> Node:
    """A lane of the program from 0 to its end, where one at a place is."""
    lane = constant(at, I64)
    for node, count in terms:
        lane = b.add(lane, _times(b, node, count))
    return b.min(b.max(lane, 0), end)
