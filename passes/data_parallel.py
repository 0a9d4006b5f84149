"""data_parallel: split the batch over ranks."""

from __future__ import annotations

from dataclasses import dataclass

from stack.ir.func import Func
from stack.passes.sharding.strategies.draft_shardings import DraftShardings
from stack.rewrite import Log, Pass


@dataclass(frozen=True)
class DataParallel(Pass):
    """Split a dim of the inputs. Sums over it, such as gradients, become sums over ranks.

    Attributes:
        mesh: its axes, as `dp=2, tp=4`.
        axis: the mesh axis to split over.
        batch: name patterns of the parameters that have the dim.
        dim: the number of the dim.
    """

    mesh: str = ""
    axis: str = "dp"
    batch: tuple[str, ...] = ("x", "y")
    dim: int = 0

    def run(self, func: Func, log: Log) -> Func:
        places = DraftShardings(func, self.mesh)
        axis = places.axis(self.axis)
        if not log.spend(self.name):
            return func
        for name, node in places.named(self.batch).items():
            places.split(node, self.dim, axis, name)
        return places.func()
