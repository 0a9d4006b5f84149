"""expert_parallel: each rank has some of the experts (Lepikhin et al., "GShard", 2020)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from stack.errors import UsageError
from stack.ir.node import Func, Node
from stack.passes.sharding.factors import factors_of
from stack.passes.sharding.strategies.places import Places
from stack.passes.sharding.strategies.products import products
from stack.rewrite import Log, Pass


@dataclass(frozen=True)
class ExpertParallel(Pass):
    """Weights are split by expert, and so are the products with them.

    Where the same axis splits the batch, what goes to experts and comes back takes an all-to-all.

    Attributes:
        mesh: its axes, as `dp=2, ep=4`.
        axis: the one that splits.
        experts: patterns of weights with an axis of experts.
        dim: its number.
    """

    name: ClassVar[str] = "expert_parallel"
    mesh: str = ""
    axis: str = "ep"
    experts: tuple[str, ...] = ("*.experts.*",)
    dim: int = 0

    def run(self, func: Func, log: Log) -> Func:
        places = Places(func, self.mesh)
        axis = places.axis(self.axis)
        if not log.spend(self.name):
            return func
        for name, weight in places.named(self.experts).items():
            places.split_weight(name, self.dim, axis)
            for node, dim in self._products(func, weight, name):
                places.split(node, dim, axis)
        return places.func()

    def _products(self, func: Func, weight: Node, name: str) -> list[tuple[Node, int]]:
        """Products with a weight, and where they have the axis of experts."""
        found: list[tuple[Node, int]] = []
        for node, operand, dims in products(func, weight):
            factors = factors_of(node)
            factor = factors.operands[operand][dims[self.dim]] if self.dim in dims else ()
            found += [(node, d) for d, own in enumerate(factors.results[0]) if factor and own == factor]
        if not found:
            raise UsageError(f"%{name}: no product has dim {self.dim} of it as an axis of experts")
        return found
