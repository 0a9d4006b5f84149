"""Which place a mesh axis gets where a node has several for it: the one that sends fewest bytes.

Each place of the first conflict is tried on the whole program: propagated, planned, and its bytes
counted; then the next conflict that is left. Nodes that are alike share one decision, so that
layers of a kind are decided once.
"""

from __future__ import annotations

from collections.abc import Callable

from stack.errors import RuleError
from stack.ir.mesh import Mesh
from stack.ir.node import Func
from stack.passes.sharding.cells import Program
from stack.passes.sharding.plan import planned_bytes
from stack.passes.sharding.spread import Conflict, Spread

Tell = Callable[[str, tuple[str, ...]], None]
MOST = 24  # conflicts that are tried out; those after them leave the largest value where it is


def decided(func: Func, mesh: Mesh, strict: bool, tell: Tell) -> Program:
    """The program with places for all values.

    Raises RuleError, with the choices and their bytes, where strict and a node leaves a choice.
    """
    choices: dict[str, str] = {}
    while True:
        open_ = _open(func, mesh, choices)
        if open_ is None or len(choices) == MOST:
            break
        costs = {
            factor: planned_bytes(_spread(func, mesh, {**choices, open_.key: factor})[0])
            for factor in open_.factors
        }
        best = min(costs, key=lambda factor: costs[factor])
        told = ", ".join(f"{factor} ({cost} bytes)" for factor, cost in costs.items())
        if strict:
            raise RuleError(
                f"{open_.where} can be split along {open_.axis} in several ways: {told};"
                " annotate it to choose"
            )
        choices[open_.key] = best
        tell(f"{open_.where}: {open_.axis} on {best}, of {told}", ())
    program, spread = _spread(func, mesh, choices, tell)
    del spread
    return program


def _open(func: Func, mesh: Mesh, choices: dict[str, str]) -> Conflict | None:
    """The first conflict without a choice."""
    _, spread = _spread(func, mesh, choices)
    return next((c for key, c in spread.conflicts.items() if key not in choices), None)


def _spread(
    func: Func, mesh: Mesh, choices: dict[str, str], tell: Tell = lambda text, lines: None
) -> tuple[Program, Spread]:
    program = Program(func, mesh)
    spread = Spread(program, tell, choices)
    spread.run()
    return program, spread
