"""Propagation: where some values lie, others follow, in both directions, to a fixed point.

In order: what users gave priority 0 first; then nodes that move data or work by element, which
leave no choice; then factors that operands and results share; then those that are reduced, whose
split leaves open sums. Where places of one mesh axis disagree, what agrees goes first. A conflict
is decided once for all nodes that are alike: `decide` tries each place on the whole program.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from stack.ir.mesh import Axes, MeshAxis, axes_text, joined, size_of, starts_with
from stack.passes.sharding.cells import Cell, Program, Tie, Value
from stack.passes.sharding.factors import Split


class Heard(NamedTuple):
    """What one value of a node says about a factor."""

    factor: str
    axes: Axes
    value: int
    bytes: int


class Round(NamedTuple):
    """Who is asked: ties up to a level, reduced factors or not, and whether conflicts end."""

    level: int
    reduces: bool
    decides: bool


ROUNDS = (
    Round(0, False, False),
    Round(1, False, False),
    Round(1, False, True),
    Round(1, True, False),
    Round(1, True, True),
)


class Conflict(NamedTuple):
    """Places that one node has for one mesh axis: factors, those that were asked for first.

    Attributes:
        value: the result of the node.
        key: what nodes that are alike have in common.
        where: the node, for messages.
    """

    value: Value
    key: str
    axis: MeshAxis
    factors: tuple[str, ...]
    where: str


@dataclass
class Spread:
    """Propagation over a program.

    Attributes:
        tell: takes what was decided, and the source lines that it is about; None for a trial.
        decided: for conflicts by their key, the factor that the axis goes to.
        seeds: results whose nodes were decided about: for an axis the factor that it goes to.
        conflicts: those that were met, in order.
    """

    program: Program
    tell: Callable[[str, tuple[str, ...]], None] | None
    decided: Mapping[str, str]
    seeds: Mapping[tuple[Value, MeshAxis], str]
    conflicts: dict[tuple[Value, MeshAxis], Conflict] = field(
        default_factory=dict[tuple[Value, MeshAxis], Conflict]
    )
    asked: dict[int, tuple[int, ...]] = field(default_factory=dict[int, tuple[int, ...]])
    settled: dict[int, Axes] = field(default_factory=dict[int, Axes])  # by earlier priorities

    def run(self) -> None:
        """To the fixed point."""
        for tie in self.program.ties:
            self._seed(tie)
        priorities = {dim.priority or 0 for c in self._cells() for dim in c.asked if dim.axes}
        for priority in sorted(priorities):
            self.asked.clear()
            self.settled = {id(cell): cell.used for cell in self._cells()}
            for turn in ROUNDS:
                ties = [tie for tie in self.program.ties if tie.level <= turn.level]
                while any([self._ask(tie, priority, turn) for tie in ties]):
                    continue

    def _seed(self, tie: Tie) -> None:
        """Put the results of a node where it was decided."""
        for axis in [axis for value, axis in self.seeds if value == tie.values[-1]]:
            factor = self.seeds[tie.values[-1], axis]
            cell, dims = tie.cells[-1], tie.factors.values[-1]
            found = tie.factors.axes_of(dims, {factor: (axis,)}) or ()
            for dim, axes in enumerate(found):
                if axes and self._extends(cell, dim, axes):
                    cell.split(dim, axes)

    def _cells(self) -> Iterable[Cell]:
        return self.program.cells.values()

    def _ask(self, tie: Tie, priority: int, turn: Round) -> bool:
        """A step, unless the last one left nothing, and nothing changed since."""
        now = tuple(cell.changes for cell in tie.cells)
        if self.asked.get(id(tie)) == now:
            return False
        self.asked[id(tie)] = now
        return self._step(tie, priority, turn)

    def _step(self, tie: Tie, priority: int, turn: Round) -> bool:
        """Whether one node told one of its values something new."""
        heard = list(self._heard(tie, priority, turn))
        if not heard:
            return False
        chosen = self._agreed(tie, heard, turn)
        split: Split = {h.factor: h.axes for h in chosen}
        source = {h.factor: h.value for h in chosen}
        changed = False
        for number, (cell, dims) in enumerate(zip(tie.cells, tie.factors.values, strict=True)):
            found = tie.factors.axes_of(dims, self._known(split, dims))
            for dim, axes in enumerate(found or ()):
                if self._extends(cell, dim, axes):
                    factor = next(f for f in reversed(dims[dim]) if split.get(f))
                    self._extend(tie, number, dim, axes, factor, source[factor])
                    changed = True
        return changed

    def _known(self, split: Split, dims: Iterable[tuple[str, ...]]) -> Split:
        own = {factor for factors in dims for factor in factors}
        return {factor: axes for factor, axes in split.items() if factor in own}

    def _heard(self, tie: Tie, priority: int, turn: Round) -> Iterable[Heard]:
        for number, (cell, dims) in enumerate(zip(tie.cells, tie.factors.values, strict=True)):
            told = tuple(
                axes if (asked.priority or 0) <= priority else ()
                for axes, asked in zip(cell.axes, cell.asked, strict=True)
            )
            for factor, axes in tie.factors.split_of(dims, told).items():
                if factor in tie.factors.reduced and not turn.reduces:
                    self.asked.pop(id(tie), None)  # again in a later round
                    continue
                yield Heard(factor, axes, number, cell.bytes)

    def _agreed(self, tie: Tie, heard: list[Heard], turn: Round) -> list[Heard]:
        """What of it can hold at once: the rest is left out, or decided."""
        order = sorted(heard, key=lambda h: (-h.bytes, -size_of(h.axes), h.value))
        if turn.decides:
            order = self._decided(tie, order)
        chosen: dict[str, Heard] = {}
        for h in order:
            if not turn.decides and any(_rivals(h, other) for other in order):
                self.asked.pop(id(tie), None)
                continue
            held = chosen.get(h.factor)
            if held is not None and not starts_with(h.axes, held.axes):
                continue
            others = [a for f, c in chosen.items() if f != h.factor for a in c.axes]
            if not any(a.meets(b) for a in h.axes for b in others):
                chosen[h.factor] = h
        return list(chosen.values())

    def _decided(self, tie: Tie, order: list[Heard]) -> list[Heard]:
        """With the first axis that is wanted in two places, in one of them."""
        pair = next(((h, c) for h in order for c in order if _rivals(h, c)), None)
        if pair is None or pair[0].factor == pair[1].factor:
            return order
        axis = next(a for a in pair[0].axes if any(a.meets(b) for b in pair[1].axes))
        result, last = tie.cells[-1], len(tie.cells) - 1
        if any(map(axis.meets, self.settled[id(result)])):
            # what was asked for first leaves no choice
            return sorted(order, key=lambda h: h.value != last)
        factor = self.seeds.get((tie.values[-1], axis))
        if factor is None:
            conflict = self._conflict(tie, order, axis)
            self.conflicts.setdefault((conflict.value, axis), conflict)
            factor = self.decided.get(conflict.key, conflict.factors[0])
        kept = [h for h in order if h.factor == factor or not any(map(axis.meets, h.axes))]
        if any(h.factor == factor and any(map(axis.meets, h.axes)) for h in kept):
            return kept
        first = Heard(factor, (axis,), order[0].value, order[0].bytes)
        return [first, *kept]

    def _conflict(self, tie: Tie, order: list[Heard], axis: MeshAxis) -> Conflict:
        asked = [h.factor for h in order if any(map(axis.meets, h.axes))]
        taken = {h.factor for h in order}
        free = [
            factor
            for factor, size in tie.factors.sizes.items()
            if factor not in taken | tie.factors.fixed | tie.factors.reduced
            and all(factor in sum(dims, ()) for dims in tie.factors.results)
            and size >= axis.size
        ]
        types = ", ".join(str(value.type) for value in tie.values)
        said = ", ".join(f"{h.value}:{h.factor}:{axes_text(h.axes)}" for h in order)
        key = f"{tie.node.op}({types}) {tie.factors.operands} {said}"
        name = self.program.name(tie.values[-1])
        lines = ", ".join(self.program.lines(tie.values[-1])) or "no source line"
        factors = tuple(dict.fromkeys((*asked, *free)))
        return Conflict(tie.values[-1], key, axis, factors, f"{name} = {tie.node.op} ({lines})")

    def _extends(self, cell: Cell, dim: int, axes: Axes) -> bool:
        """Whether a dim may take axes, and they are more than it has."""
        old = cell.axes[dim]
        if not cell.asked[dim].is_open or not starts_with(axes, old):
            return False
        if size_of(axes) <= size_of(old) or size_of(axes) > cell.shape[dim]:
            return False
        others = [a for d, found in enumerate(cell.axes) if d != dim for a in found]
        taken: list[MeshAxis] = [*others, *cell.banned]
        return not any(a.meets(b) for a in axes for b in taken)

    def _extend(
        self, tie: Tie, number: int, dim: int, axes: Axes, factor: str, source: int
    ) -> None:
        value, name = tie.values[number], self.program.name
        tie.cells[number].split(dim, axes)
        if self.tell is None:
            return
        where = ", ".join(self.program.lines(tie.values[-1]))
        reason = (
            f"{axes_text(joined(axes))}, from {name(tie.values[source])} through factor"
            f" {factor} of {tie.node.op}" + (f", {where}" if where else "")
        )
        self.tell(f"{name(value)}: dim {dim} on {reason}", self.program.lines(value))


def _rivals(first: Heard, second: Heard) -> bool:
    """Whether both cannot hold."""
    if first is second:
        return False
    if first.factor == second.factor:
        return _disagree(first.axes, second.axes)
    return any(a.meets(b) for a in first.axes for b in second.axes)


def _disagree(first: Axes, second: Axes) -> bool:
    return not starts_with(first, second) and not starts_with(second, first)
