"""ring: what was gathered comes in turns, while the ranks compute on what they have."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from stack.ir.node import Func
from stack.passes.sharding.strategies.chains import chained
from stack.passes.sharding.strategies.rings import ringed
from stack.rewrite import Log, Pass


@dataclass(frozen=True)
class Ring(Pass):
    """Values that were gathered along a mesh axis go around a ring, part by part.

    Runs on the program of one rank. With scores along the sequence this is ring attention (Liu et
    al., 2023), with products of gathered values the overlap of Wang et al. (ASPLOS 2023).

    Attributes:
        axis: the mesh axis.
    """

    name: ClassVar[str] = "ring"
    axis: str = "cp"

    def run(self, func: Func, log: Log) -> Func:
        if not log.spend(self.name):
            return func
        return ringed(chained(func, self.axis, log), self.axis)
