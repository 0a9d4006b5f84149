"""reshard: make the movement between ranks explicit."""

from __future__ import annotations

from dataclasses import dataclass

from stack.ir.func import Func
from stack.passes.sharding.cells import CellGraph
from stack.passes.sharding.plan import planned
from stack.passes.sharding.retype import without_streams
from stack.rewrite import Log, Pass
from stack.sim import machine


@dataclass(frozen=True)
class Reshard(Pass):
    """Pick the sharding of each node that sends the fewest bytes; insert `reshard` nodes for them.

    Attributes:
        machine: the model by which communication and matmuls are weighed; see `stack.sim`.
    """

    machine: str = "h100"

    def run(self, func: Func, log: Log) -> Func:
        if not func.meshes or not log.spend(self.name):
            return func
        plain = Func(func.name, without_streams(func.body), func.level)
        program = CellGraph(plain, func.meshes[0], machine(self.machine).balance)
        return Func(func.name, planned(program, log.note), func.level)
