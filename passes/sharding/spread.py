"""Propagation: where some values lie, others follow, in both directions, to a fixed point.

In order: what users gave priority 0 first; then nodes that move data or work by element, which
leave no choice; then all nodes, as long as nothing they are told disagrees; last those where it
does: then the larger value stays where it is, which sends fewest bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

from stack.errors import RuleError
from stack.ir.mesh import Axes, MeshAxis, axes_text, joined, size_of, starts_with
from stack.passes.sharding.cells import Cell, Program, Tie
from stack.passes.sharding.factors import Split


class Heard(NamedTuple):
    """What one value of a node says about a factor."""

    factor: str
    axes: Axes
    value: int
    bytes: int


@dataclass
class Spread:
    """Propagation over a program.

    Attributes:
        strict: whether a choice is an error.
        tell: takes what was decided, and the source lines that it is about.
    """

    program: Program
    strict: bool
    tell: Callable[[str, tuple[str, ...]], None]

    def run(self) -> None:
        """To the fixed point. Raises RuleError for a choice in strict mode."""
        ranks = {dim.priority or 0 for c in self._cells() for dim in c.asked if dim.axes}
        for priority in sorted(ranks):
            for level in (0, 1, 2):
                while any([self._step(tie, priority, level) for tie in self._ties(level)]):
                    continue

    def _cells(self) -> Iterable[Cell]:
        return self.program.cells.values()

    def _ties(self, level: int) -> list[Tie]:
        return [tie for tie in self.program.ties if tie.level <= level]

    def _step(self, tie: Tie, priority: int, level: int) -> bool:
        """Whether one node told one of its values something new."""
        heard = list(self._heard(tie, priority))
        if not heard:
            return False
        chosen = self._agreed(tie, heard, level)
        split: Split = {h.factor: h.axes for h in chosen}
        source = {h.factor: h.value for h in chosen}
        changed = False
        for number, (cell, dims) in enumerate(zip(tie.cells, tie.factors.values, strict=True)):
            found = tie.factors.axes_of(dims, self._known(split, dims))
            for dim, axes in enumerate(found or ()):
                if self._extends(cell, dim, axes):
                    new = axes
                    cell.axes[dim] = joined(new)
                    factor = next(f for f in reversed(dims[dim]) if split.get(f))
                    self._note(tie, number, dim, factor, source[factor])
                    changed = True
        return changed

    def _known(self, split: Split, dims: Iterable[tuple[str, ...]]) -> Split:
        own = {factor for factors in dims for factor in factors}
        return {factor: axes for factor, axes in split.items() if factor in own}

    def _heard(self, tie: Tie, priority: int) -> Iterable[Heard]:
        for number, (cell, dims) in enumerate(zip(tie.cells, tie.factors.values, strict=True)):
            told = tuple(
                axes if (asked.priority or 0) <= priority else ()
                for axes, asked in zip(cell.axes, cell.asked, strict=True)
            )
            for factor, axes in tie.factors.split_of(dims, told).items():
                yield Heard(factor, axes, number, cell.bytes)

    def _agreed(self, tie: Tie, heard: list[Heard], level: int) -> list[Heard]:
        """What of it can hold at once: the rest is left out, or at the last level chosen from."""
        order = sorted(heard, key=lambda h: (-h.bytes, -size_of(h.axes), h.value))
        chosen: dict[str, Heard] = {}
        for h in order:
            held = chosen.get(h.factor)
            rivals = [
                c
                for c in order
                if c is not h
                and (
                    _disagree(c.axes, h.axes)
                    if c.factor == h.factor
                    else any(a.meets(b) for a in c.axes for b in h.axes)
                )
            ]
            if rivals and level < 2:
                continue
            if rivals and self.strict:
                self._refuse(tie, [h, *rivals])
            if held is not None and not starts_with(h.axes, held.axes):
                continue
            others = [a for f, c in chosen.items() if f != h.factor for a in c.axes]
            if any(a.meets(b) for a in h.axes for b in others):
                continue
            chosen[h.factor] = h
        return list(chosen.values())

    def _refuse(self, tie: Tie, rivals: list[Heard]) -> None:
        name = self.program.name
        choices = "; ".join(
            f"{h.factor} on {axes_text(h.axes)}, as {name(tie.values[h.value])}"
            f" ({h.bytes} bytes stay)"
            for h in rivals
        )
        where = ", ".join(self.program.lines(tie.values[-1])) or "no source line"
        raise RuleError(
            f"{name(tie.values[-1])} = {tie.node.op} ({where}) can be split in several ways:"
            f" {choices}; annotate it to choose"
        )

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

    def _note(self, tie: Tie, number: int, dim: int, factor: str, source: int) -> None:
        cell, value = tie.cells[number], tie.values[number]
        name = self.program.name
        where = ", ".join(self.program.lines(tie.values[-1]))
        reason = (
            f"{axes_text(cell.axes[dim])}, from {name(tie.values[source])} through factor"
            f" {factor} of {tie.node.op}" + (f", {where}" if where else "")
        )
        cell.reasons.setdefault(dim, []).append(reason)
        self.tell(f"{name(value)}: dim {dim} on {reason}", self.program.lines(value))


def _disagree(first: Axes, second: Axes) -> bool:
    return not starts_with(first, second) and not starts_with(second, first)
