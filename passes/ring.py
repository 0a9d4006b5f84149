"""ring: replace gathers by a ring exchange that overlaps with computation."""

from __future__ import annotations

from dataclasses import dataclass

from stack.ir.func import Func
from stack.passes.sharding.strategies.chains import chained
from stack.passes.sharding.strategies.rings import ringed
from stack.rewrite import Log, Pass


@dataclass(frozen=True)
class Ring(Pass):
    """Pass parts of gathered values around a ring along a mesh axis.

    Runs on the program of one rank. With scores along the sequence this is ring attention (Liu et
    al., 2023). With matmuls of gathered values it is the overlap of Wang et al. (ASPLOS 2023).
    """

    axis: str = "cp"

    def run(self, func: Func, log: Log) -> Func:
        if not log.spend(self.name):
            return func
        return ringed(chained(func, self.axis, log), self.axis)
