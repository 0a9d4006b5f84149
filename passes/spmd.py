"""spmd: one program for all ranks, each on its own shards."""

from __future__ import annotations

from dataclasses import dataclass

from stack.ir.func import Func
from stack.passes.sharding.partition import partitioned
from stack.rewrite import Log, Pass


@dataclass(frozen=True)
class Spmd(Pass):
    """Replace whole values by the shards of one rank, and reshards by collectives."""

    def run(self, func: Func, log: Log) -> Func:
        if not func.meshes or not log.spend(self.name):
            return func
        return Func(func.name, partitioned(func.body, func.meshes[0]), func.level)
