"""tensor_parallel: split weights by columns, then by rows (Shoeybi et al., "Megatron-LM", 2019)."""

from __future__ import annotations

from dataclasses import dataclass

from stack.errors import UsageError
from stack.ir.func import Func
from stack.ir.node import Node
from stack.mesh.meshes import MeshAxis
from stack.passes.sharding.factors import factors_of
from stack.passes.sharding.strategies.draft_shardings import DraftShardings
from stack.passes.sharding.strategies.products import products
from stack.rewrite import Log, Pass


@dataclass(frozen=True)
class TensorParallel(Pass):
    """Split matmuls along a result axis, and the matmuls after them along the contracted axis.

    Attributes:
        mesh: its axes, as `dp=2, tp=4`.
        axis: the mesh axis to split over.
        columns: name patterns of weights to split along an axis of the matmul's result.
        rows: name patterns of weights to split along the contracted axis.
        sequence: the dim of activations to split between these matmuls; -1 leaves them whole
            (Korthikanti et al., "Reducing Activation Recomputation", 2022).
    """

    mesh: str = ""
    axis: str = "tp"
    columns: tuple[str, ...] = ()
    rows: tuple[str, ...] = ()
    sequence: int = -1

    def run(self, func: Func, log: Log) -> Func:
        places = DraftShardings(func, self.mesh)
        axis = places.axis(self.axis)
        if not log.spend(self.name):
            return func
        for globs, is_column in ((self.columns, True), (self.rows, False)):
            for name, weight in places.named(globs).items():
                self._place(places, name, weight, axis, is_column)
        return places.func()

    def _place(
        self, places: DraftShardings, name: str, weight: Node, axis: MeshAxis, is_column: bool
    ) -> None:
        product, dim = _first_product(places.old, weight, name, is_column)
        places.split_weight(name, dim, axis)
        if self.sequence < 0:
            return
        # either matmul may have the axis: state which, if both could
        if is_column:
            places.split(product, product.tensor.rank - 1, axis)
        else:
            places.split(product, self.sequence, axis)


def _first_product(func: Func, weight: Node, name: str, is_column: bool) -> tuple[Node, int]:
    """Returns the first matmul with a weight, and the weight's dim that it keeps, or contracts."""
    for node, operand, places in products(func, weight):
        factors = factors_of(node)
        made = {f for dim in factors.results[0] for f in dim}
        for dim, place in places.items():
            if (factors.operands[operand][place][0] in made) == is_column:
                return node, dim
    raise UsageError(f"%{name}: no product {'makes' if is_column else 'sums over'} a dim of it")
