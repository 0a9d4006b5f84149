"""zero: shard optimizer state, gradients and weights (Rajbhandari et al., "ZeRO", SC 2020)."""

from __future__ import annotations

from dataclasses import dataclass

from stack.errors import UsageError
from stack.ir.func import Func
from stack.passes.sharding.strategies.draft_shardings import DraftShardings
from stack.rewrite import Log, Pass


@dataclass(frozen=True)
class Zero(Pass):
    """Split optimizer state over data-parallel ranks; then gradients; then weights, as in FSDP.

    Attributes:
        mesh: its axes, as `dp=8`.
        axis: the mesh axis that splits the batch.
        stage: 1 splits optimizer state, 2 gradients as well, 3 weights as well.
        weights: name patterns of parameters; those without a divisible dim stay whole.
    """

    mesh: str = ""
    axis: str = "dp"
    stage: int = 3
    weights: tuple[str, ...] = ("*.weight",)

    def run(self, func: Func, log: Log) -> Func:
        if self.stage not in (1, 2, 3):
            raise UsageError(f"ZeRO has stages 1, 2 and 3, not {self.stage}")
        places = DraftShardings(func, self.mesh)
        axis = places.axis(self.axis)
        if not log.spend(self.name):
            return func
        for name, weight in places.named(self.weights).items():
            dim = places.free_dim(weight, axis)
            if dim is None:
                log.note(f"%{name} stays whole: no axis for {axis.size} ranks")
                continue
            if self.stage > 2:
                places.gather(weight)
                places.split_weight(name, dim, axis)
                continue
            places.split_state(name, dim, axis)
            if self.stage > 1:
                places.split_gradient(name, dim, axis)
        return places.func()
