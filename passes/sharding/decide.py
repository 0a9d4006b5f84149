"""Which place a mesh axis gets where a node has several for it: the one that sends fewest bytes.

Each place of the first conflict is tried on the whole program: propagated, planned, and its bytes
counted; then the next conflict that is left. Nodes that are alike share one decision, so that
layers of a kind are decided once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from stack.errors import RuleError
from stack.ir.mesh import Mesh, MeshAxis
from stack.ir.node import Func
from stack.passes.sharding.cells import Program, Value
from stack.passes.sharding.plan import planned_bytes
from stack.passes.sharding.spread import Conflict, Spread

Tell = Callable[[str, tuple[str, ...]], None]
Seeds = dict[tuple[Value, MeshAxis], str]
MOST = 24  # conflicts that are tried out; those after them leave the largest value where it is


def decided(func: Func, mesh: Mesh, strict: bool, tell: Tell) -> Program:
    """The program with places for all values.

    Raises RuleError, with the choices and their bytes, where strict and a node leaves a choice.
    """
    decider = _Decider(func, mesh)
    while (conflict := decider.open()) is not None and len(decider.choices) < MOST:
        costs = {factor: decider.bytes(conflict, factor) for factor in conflict.factors}
        best = min(costs, key=lambda factor: costs[factor])
        told = ", ".join(f"{factor} ({cost} bytes)" for factor, cost in costs.items())
        if strict:
            raise RuleError(
                f"{conflict.where} can be split along {conflict.axis} in several ways: {told};"
                " annotate it to choose"
            )
        decider.choices[conflict.key] = best
        lines = decider.lines(conflict)
        tell(f"{conflict.where}: {conflict.axis} on {best}, of {told}", lines)
    return decider.spread(decider.choices, decider.seeds, tell).program


@dataclass
class _Decider:
    """What was decided so far.

    Attributes:
        choices: by what nodes have in common.
        seeds: of the nodes that were met.
    """

    func: Func
    mesh: Mesh
    choices: dict[str, str] = field(default_factory=dict[str, str])
    seeds: Seeds = field(default_factory=Seeds)

    def spread(self, choices: dict[str, str], seeds: Seeds, tell: Tell | None = None) -> Spread:
        """A propagation with these choices."""
        program = Program(self.func, self.mesh)
        spread = Spread(program, tell, choices, seeds)
        spread.run()
        return spread

    def open(self) -> Conflict | None:
        """The first conflict that nothing was decided about; seeds those that something was."""
        while True:
            found = self.spread(self.choices, self.seeds).conflicts
            known = {
                place: self.choices[conflict.key]
                for place, conflict in found.items()
                if conflict.key in self.choices and place not in self.seeds
            }
            if not known:
                return next((c for c in found.values() if c.key not in self.choices), None)
            self.seeds.update(known)

    def bytes(self, conflict: Conflict, factor: str) -> int:
        """What a rank sends where a conflict ends so."""
        choices = {**self.choices, conflict.key: factor}
        seeds = {**self.seeds, (conflict.value, conflict.axis): factor}
        return planned_bytes(self.spread(choices, seeds).program)

    def lines(self, conflict: Conflict) -> tuple[str, ...]:
        """Source lines of a conflict."""
        block = self.func.body
        for node, number in conflict.value.path:
            block = node.blocks[number]
        return block.locs.get(conflict.value.node, ())
