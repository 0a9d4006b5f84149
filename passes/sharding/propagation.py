"""Sharding propagation: some shardings imply others, forward and backward, to a fixed point.

The order is: first shardings of priority 0; then nodes that move data or are elementwise, which
leave no choice; then factors that operands and results share; then reduced factors, whose split
leaves partial sums. If shardings conflict on a mesh axis, their common part is propagated first. A
conflict is decided once for all equal nodes: `decide` tries each candidate on the whole program.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from stack.mesh.meshes import Axes, MeshAxis, axes_text, joined, size_of, starts_with
from stack.passes.sharding.agreement import (
    Agreement,
    DimSplit,
    FactorSplit,
    agreement,
    growths,
    heard,
    rivals,
    together,
)
from stack.passes.sharding.cells import Cell, CellGraph, CellTie, CellValue


class Round(NamedTuple):
    """One round of propagation.

    Attributes:
        level: ties of higher levels are left to later rounds.
        reduces: whether reduced factors may be split.
        decides: whether conflicts may be decided.
    """

    level: int
    reduces: bool
    decides: bool


ROUNDS = (  # in this order, each to a fixed point
    Round(0, False, False),
    Round(1, False, False),
    Round(1, False, True),
    Round(1, True, False),
    Round(1, True, True),
)


Seeds = Mapping[CellValue, Mapping[MeshAxis, str]]


class Conflict(NamedTuple):
    """Factors of one node that compete for one mesh axis; those with a sharding first.

    Attributes:
        value: the result of the node.
        key: the same for all equal nodes.
        axis: the mesh axis.
        factors: the candidates.
        where: the node, for messages.
    """

    value: CellValue
    key: str
    axis: MeshAxis
    factors: tuple[str, ...]
    where: str


@dataclass
class Propagation:
    """Propagation over a program.

    Attributes:
        program: the program, whose cells are changed.
        tell: receives each step, with its source lines; None for a trial.
        decided: for conflicts by their key, the factor that the axis splits.
        seeds: for results of decided nodes, the factor that each axis splits.
        conflicts: the conflicts met, in order.
    """

    program: CellGraph
    tell: Callable[[str, tuple[str, ...]], None] | None
    decided: Mapping[str, str]
    seeds: Seeds
    conflicts: dict[tuple[CellValue, MeshAxis], Conflict] = field(
        default_factory=dict[tuple[CellValue, MeshAxis], Conflict]
    )
    settled: dict[int, Axes] = field(default_factory=dict[int, Axes])  # by earlier priorities
    due: set[int] = field(default_factory=set[int])  # numbers of ties whose values changed
    left: set[int] = field(default_factory=set[int])  # numbers of ties with more consequences later

    def run(self) -> None:
        """Runs to the fixed point."""
        for tie in self.program.ties:
            if tie.values[-1] in self.seeds:
                self._seed(tie)
        priorities = {dim.priority or 0 for c in self._cells() for dim in c.asked if dim.axes}
        for priority in sorted(priorities):
            self.settled = {id(cell): cell.used for cell in self._cells()}
            self.due = {number for cell in self._cells() if cell.used for number in cell.ties}
            for turn in ROUNDS:
                self._round(priority, turn)

    def _round(self, priority: int, turn: Round) -> None:
        """Propagates through all ties up to the level of the round, in program order, repeatedly
        until no cell changes."""
        ties = self.program.ties
        self.due |= self.left
        self.left.clear()
        sweep = sorted(number for number in self.due if ties[number].level <= turn.level)
        while sweep:
            self.due.difference_update(sweep)
            waiting, again = set(sweep), set[int]()
            while sweep:
                number = heapq.heappop(sweep)
                waiting.discard(number)
                for changed in self._ask(number, priority, turn):
                    for other in changed.ties:
                        if ties[other].level > turn.level:
                            self.due.add(other)
                        elif other <= number:
                            again.add(other)
                        elif other not in waiting:
                            waiting.add(other)
                            heapq.heappush(sweep, other)
            sweep = sorted(again)

    def _seed(self, tie: CellTie) -> None:
        """Splits a node's last result by the factors that earlier decisions gave to mesh axes."""
        for axis, factor in self.seeds.get(tie.values[-1], {}).items():
            cell, dims = tie.cells[-1], tie.factors.values[-1]
            found = tie.factors.axes_of(dims, {factor: (axis,)}) or ()
            for dim, axes in enumerate(found):
                if axes and self._extends(cell, dim, axes):
                    cell.split(dim, axes)

    def _cells(self) -> Iterable[Cell]:
        return self.program.cells.values()

    def _ask(self, number: int, priority: int, turn: Round) -> list[Cell]:
        """Propagates shardings between the values of one tie.

        Decides their conflicts if the round may. Returns the cells that get more mesh axes.
        """
        tie = self.program.ties[number]
        found = self._agreement(tie, priority, turn)
        if found.is_left:
            self.left.add(number)
        if not (found.rivals and turn.decides):
            return self._grow(tie, found.growths)
        told = tuple([_told(cell, priority) for cell in tie.cells])
        order = heard(tie.factors, told, tie.sizes)
        if not turn.reduces:
            order = [h for h in order if h.factor not in tie.factors.reduced]
        chosen = together(self._decided(tie, order))
        return self._grow(tie, growths(tie.factors, told, chosen))

    def _agreement(self, tie: CellTie, priority: int, turn: Round) -> Agreement:
        """Returns which dims the shardings of a tie's values let split further.

        Cached for equal ties, unless priorities hide some dims.
        """
        waits = self.program.waits and any([cell.waits for cell in tie.cells])
        key = turn.reduces, tuple([cell.code for cell in tie.cells])
        found = None if waits else tie.found.get(key)
        if found is None:
            told = tuple([_told(cell, priority) for cell in tie.cells])
            found = agreement(tie.factors, told, tie.sizes, turn.reduces)
            if not waits:
                tie.found[key] = found
        return found

    def _grow(self, tie: CellTie, found: Iterable[DimSplit]) -> list[Cell]:
        changed: list[Cell] = []
        for growth in found:
            cell = tie.cells[growth.value]
            if self._extends(cell, growth.dim, growth.axes):
                self._extend(tie, growth)
                changed.append(cell)
        return changed

    def _decided(self, tie: CellTie, order: list[FactorSplit]) -> list[FactorSplit]:
        """Decides the first mesh axis that two different factors of a tie compete for. Returns the
        factor splits that do not contradict the decision; all if there is no conflict."""
        pair = next(((h, c) for h in order for c in order if rivals(h, c)), None)
        if pair is None or pair[0].factor == pair[1].factor:
            return order
        axis = next(a for a in pair[0].axes if any(a.meets(b) for b in pair[1].axes))
        result, last = tie.cells[-1], len(tie.cells) - 1
        if any(map(axis.meets, self.settled[id(result)])):
            # a sharding of an earlier priority leaves no choice
            return sorted(order, key=lambda h: h.value != last)
        factor = self.seeds.get(tie.values[-1], {}).get(axis)
        if factor is None:
            conflict = self.conflicts.get((tie.values[-1], axis))
            if conflict is None:
                conflict = self._conflict(tie, order, axis)
                self.conflicts[conflict.value, axis] = conflict
            factor = self.decided.get(conflict.key, conflict.factors[0])
        kept = [h for h in order if h.factor == factor or not any(map(axis.meets, h.axes))]
        if any(h.factor == factor and any(map(axis.meets, h.axes)) for h in kept):
            return kept
        first = FactorSplit(factor, (axis,), order[0].value, order[0].bytes)
        return [first, *kept]

    def _conflict(self, tie: CellTie, order: list[FactorSplit], axis: MeshAxis) -> Conflict:
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
        """True if `axes` extend the mesh axes that split a dim of a cell, and may: the user left
        the dim open, the axes split nothing else of the cell, and the dim is long enough."""
        old = cell.axes[dim]
        if not cell.asked[dim].is_open or not starts_with(axes, old):
            return False
        if size_of(axes) <= size_of(old) or size_of(axes) > cell.shape[dim]:
            return False
        others = [a for d, found in enumerate(cell.axes) if d != dim for a in found]
        taken: list[MeshAxis] = [*others, *cell.banned]
        return not any(a.meets(b) for a in axes for b in taken)

    def _extend(self, tie: CellTie, growth: DimSplit) -> None:
        value, name = tie.values[growth.value], self.program.name
        tie.cells[growth.value].split(growth.dim, growth.axes)
        if self.tell is None:
            return
        where = ", ".join(self.program.lines(tie.values[-1]))
        reason = (
            f"{axes_text(joined(growth.axes))}, from {name(tie.values[growth.source])} through"
            f" factor {growth.factor} of {tie.node.op}" + (f", {where}" if where else "")
        )
        self.tell(f"{name(value)}: dim {growth.dim} on {reason}", self.program.lines(value))


def _told(cell: Cell, priority: int) -> tuple[Axes, ...]:
    """Returns for each dim of a cell the mesh axes that propagation may use now: none for a dim to
    which the user gave a later priority."""
    if not cell.waits:
        return cell.axes
    both = zip(cell.axes, cell.asked, strict=True)
    return tuple([axes if (asked.priority or 0) <= priority else () for axes, asked in both])
