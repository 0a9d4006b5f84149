"""Decide conflicts: if a mesh axis could split several dims of a node, pick the cheapest.

Each candidate of the first conflict is tried on the whole program: propagated, planned, and its
bytes counted. Then the next conflict follows. Equal nodes share one decision, so equal layers are
decided once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from stack.errors import UsageError
from stack.ir.node import Node
from stack.mesh.meshes import MeshAxis
from stack.passes.sharding.cells import CellGraph, CellValue
from stack.passes.sharding.propagation import Conflict, Propagation
from stack.passes.sharding.resharding import ReshardingPlan

Tell = Callable[[str, tuple[str, ...]], None]
Conflicts = dict[tuple[CellValue, MeshAxis], Conflict]
MOST = 24  # most conflicts that are tried; in later ones the largest value keeps its sharding


def decide(program: CellGraph, counts: Mapping[Node, int], strict: bool, tell: Tell) -> None:
    """Gives all values of a program a sharding.

    Args:
        program: the program, whose cells are changed.
        counts: for each node, the number of nodes that it represents.
        strict: refuse ambiguity instead of deciding.
        tell: receives each decision, with source lines.

    Raises UsageError, with the choices and their bytes, if `strict` and a node is ambiguous.
    """
    decider = _Decider(program, counts)
    made = Decisions({}, {})
    conflicts = decider.spread(made)
    for _ in range(MOST):
        if not conflicts:
            break
        conflict = next(iter(conflicts.values()))
        trials = {
            factor: decider.tried(made.with_(conflict, conflicts, factor))
            for factor in conflict.factors
        }
        told = ", ".join(f"{factor} ({trial.bytes} bytes)" for factor, trial in trials.items())
        if strict:
            raise UsageError(
                f"{conflict.where} can be split along {conflict.axis} in several ways: {told};"
                " annotate it to choose"
            )
        best = min(trials, key=lambda factor: trials[factor].bytes)
        made, conflicts = decider.taken(trials[best])
        tell(
            f"{conflict.where}: {conflict.axis} on {best}, of {told}",
            program.lines(conflict.value),
        )
    decider.spread(made, tell)


class Decisions(NamedTuple):
    """The decisions so far.

    Attributes:
        choices: factors, by the key of equal nodes.
        seeds: for the nodes met so far, the factor that each axis splits.
    """

    choices: Mapping[str, str]
    seeds: Mapping[CellValue, Mapping[MeshAxis, str]]

    def with_(self, conflict: Conflict, conflicts: Conflicts, factor: str) -> Decisions:
        """Adds a decision: the mesh axis of `conflict` splits the axis `factor`.

        It applies to `conflict` and to the known conflicts of equal nodes, such as of equal layers.
        """
        made = Decisions({**self.choices, conflict.key: factor}, self.seeds)
        for other in conflicts.values():
            if other.key == conflict.key:
                made = made.seeded(other, factor)
        return made

    def seeded(self, conflict: Conflict, factor: str) -> Decisions:
        """Returns the decisions with the node of `conflict` added to the nodes to which they apply:
        `factor` gets the mesh axis there."""
        own = {**self.seeds.get(conflict.value, {}), conflict.axis: factor}
        return Decisions(self.choices, {**self.seeds, conflict.value: own})


class Trial(NamedTuple):
    """The bytes that a rank sends after some decisions, and the conflicts that remain."""

    made: Decisions
    conflicts: Conflicts
    bytes: int


@dataclass
class _Decider:
    program: CellGraph
    counts: Mapping[Node, int]
    known: dict[tuple[int, ...], int] = field(default_factory=dict[tuple[int, ...], int])

    def spread(self, made: Decisions, tell: Tell | None = None) -> Conflicts:
        """Propagates shardings anew from the user's annotations, with the conflicts in `made`
        decided. Returns the conflicts that are still undecided."""
        self.program.reset()
        spread = Propagation(self.program, tell, made.choices, made.seeds)
        spread.run()
        return spread.conflicts

    def tried(self, made: Decisions) -> Trial:
        """Propagates shardings with the conflicts in `made` decided. Returns the bytes that a rank
        then sends, and the conflicts that remain."""
        return Trial(made, self.spread(made), self._bytes())

    def taken(self, trial: Trial) -> tuple[Decisions, Conflicts]:
        """Accepts the decisions of a trial, and applies them to conflicts of equal nodes too, also
        to those met only then. Returns the decisions and the conflicts that remain."""
        made, conflicts = trial.made, trial.conflicts
        while alike := [c for c in conflicts.values() if c.key in made.choices]:
            for conflict in alike:
                made = made.seeded(conflict, made.choices[conflict.key])
            conflicts = self.spread(made)
        return made, conflicts

    def _bytes(self) -> int:
        """Returns the bytes that a rank sends under the current shardings."""
        lie = tuple([cell.code for cell in self.program.cells.values()])
        if lie not in self.known:
            self.known[lie] = ReshardingPlan(self.program).bytes(self.counts)
        return self.known[lie]
