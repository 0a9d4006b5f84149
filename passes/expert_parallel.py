"""expert_parallel: split the experts over ranks (Lepikhin et al., "GShard", 2020)."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

from stack.errors import UsageError
from stack.ir.func import Func
from stack.ir.node import Node
from stack.passes.sharding.factors import factors_of
from stack.passes.sharding.strategies.axes import along
from stack.passes.sharding.strategies.draft_shardings import DraftShardings
from stack.passes.sharding.strategies.products import products
from stack.rewrite import Log, Pass


@dataclass(frozen=True)
class ExpertParallel(Pass):
    """Split weights by expert, and the matmuls with them.

    If the same mesh axis splits the batch, tokens go to experts and back by all-to-alls.

    Attributes:
        mesh: its axes, as `dp=2, ep=4`.
        axis: the mesh axis to split over.
        experts: name patterns of weights with an axis of experts.
        dim: the number of that axis.
        batch: name patterns of parameters whose other shardings the matmuls keep.
    """

    mesh: str = ""
    axis: str = "ep"
    experts: tuple[str, ...] = ()
    dim: int = 0
    batch: tuple[str, ...] = ("x",)

    def run(self, func: Func, log: Log) -> Func:
        places = DraftShardings(func, self.mesh)
        axis = places.axis(self.axis)
        if not log.spend(self.name):
            return func
        batch = [
            (along(func, {node: dim}), [other for other in own.axes if not other.meets(axis)])
            for node in places.named(self.batch).values()
            for dim, own in enumerate(places.of(node))
        ]
        for name, weight in places.named(self.experts).items():
            places.split_weight(name, self.dim, axis)
            for node, dim in self._products(func, weight, name):
                places.split(node, dim, axis)
                for dims, others in batch:
                    for other, kept in product(sorted(dims.get(node, ())), others):
                        places.split(node, other, kept)
        return places.func()

    def _products(self, func: Func, weight: Node, name: str) -> list[tuple[Node, int]]:
        """Returns matmuls with a weight, each with its dim that is the axis of experts."""
        found: list[tuple[Node, int]] = []
        for node, operand, dims in products(func, weight):
            factors = factors_of(node)
            names = factors.operands[operand][dims[self.dim]] if self.dim in dims else ()
            if names and names in factors.operands[1 - operand]:
                found += [(node, dim) for dim, own in enumerate(factors.results[0]) if own == names]
        if not found:
            raise UsageError(f"%{name}: no product has dim {self.dim} of it as an axis of experts")
        return found
