"""data_parallel: each rank has a part of the batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from stack.ir.node import Func
from stack.passes.sharding.strategies.places import Places
from stack.rewrite import Log, Pass


@dataclass(frozen=True)
class DataParallel(Pass):
    """A dim of the inputs is split; what is summed over it, gradients too, is summed over ranks.

    Attributes:
        mesh: its axes, as `dp=2, tp=4`.
        axis: the one that splits.
        batch: patterns of parameters that have the dim.
        dim: its number.
    """

    name: ClassVar[str] = "data_parallel"
    mesh: str = ""
    axis: str = "dp"
    batch: tuple[str, ...] = ("x", "y")
    dim: int = 0

    def run(self, func: Func, log: Log) -> Func:
        places = Places(func, self.mesh)
        axis = places.axis(self.axis)
        if not log.spend(self.name):
            return func
        for name, node in places.named(self.batch).items():
            places.split(node, self.dim, axis, name)
        return places.func()
