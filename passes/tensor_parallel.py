"""tensor_parallel: weights by columns, then by rows (Shoeybi et al., "Megatron-LM", 2019)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from stack.errors import UsageError
from stack.ir.mesh import MeshAxis
from stack.ir.node import Func, Node
from stack.passes.sharding.factors import factors_of
from stack.passes.sharding.strategies.places import Places
from stack.passes.sharding.strategies.products import products
from stack.rewrite import Log, Pass


@dataclass(frozen=True)
class TensorParallel(Pass):
    """Products are split along what they make, those after them along what they sum.

    Attributes:
        mesh: its axes, as `dp=2, tp=4`.
        axis: the one that splits.
        columns: patterns of weights that are split along what a product with them makes.
        rows: those that are split along what it sums.
        sequence: the dim of activations that is split between them; -1 leaves them whole
            (Korthikanti et al., "Reducing Activation Recomputation", 2022).
    """

    name: ClassVar[str] = "tensor_parallel"
    mesh: str = ""
    axis: str = "tp"
    columns: tuple[str, ...] = ()
    rows: tuple[str, ...] = ()
    sequence: int = -1

    def run(self, func: Func, log: Log) -> Func:
        places = Places(func, self.mesh)
        axis = places.axis(self.axis)
        if not log.spend(self.name):
            return func
        for globs, is_column in ((self.columns, True), (self.rows, False)):
            for name, weight in places.named(globs).items():
                self._place(places, name, weight, axis, is_column)
        return places.func()

    def _place(
        self, places: Places, name: str, weight: Node, axis: MeshAxis, is_column: bool
    ) -> None:
        product, dim = _first_product(places.old, weight, name, is_column)
        places.split_weight(name, dim, axis)
        if self.sequence < 0:
            return
        # one of the two may have the axis, and that is said where both could
        if is_column:
            places.split(product, product.tensor.rank - 1, axis)
        else:
            places.split(product, self.sequence, axis)


def _first_product(func: Func, weight: Node, name: str, is_column: bool) -> tuple[Node, int]:
    """The first product with a weight, and the dim of the weight that it makes, or sums."""
    for node, operand, places in products(func, weight):
        factors = factors_of(node)
        made = {f for dim in factors.results[0] for f in dim}
        for dim, place in places.items():
            if (factors.operands[operand][place][0] in made) == is_column:
                return node, dim
    raise UsageError(f"%{name}: no product {'makes' if is_column else 'sums over'} a dim of it")
