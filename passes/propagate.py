"""propagate: infer the shardings of all values from those of some."""

from __future__ import annotations

from dataclasses import dataclass

from stack.ir.func import Func
from stack.passes.sharding.cells import CellGraph
from stack.passes.sharding.conflicts import decide
from stack.passes.sharding.equivalence import folded
from stack.passes.sharding.retype import placed, without_streams
from stack.rewrite import Log, Pass
from stack.sim import machine


@dataclass(frozen=True)
class Propagate(Pass):
    """Infer the sharding of every value from the annotated ones, forward and backward.

    Attributes:
        machine: the model by which communication and matmuls are weighed; see `stack.sim`.
        strict: refuse ambiguous choices, instead of taking the one that moves the fewest bytes.
    """

    strict: bool = False
    machine: str = "h100"

    def run(self, func: Func, log: Log) -> Func:
        if not func.meshes or not log.spend(self.name):
            return func
        plain = Func(func.name, without_streams(func.body), func.level)
        few = folded(plain)
        program = CellGraph(few.func, func.meshes[0], machine(self.machine).balance)
        decide(program, few.counts, self.strict, log.note)
        for name, other in few.alike():
            log.note(f"%{name} is split like %{other}")
        return placed(plain, program, few.members)
