"""context_parallel: split the sequence over ranks, and scores along one of their two axes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from stack.errors import UsageError
from stack.ir.func import Func
from stack.ir.node import Node, topological
from stack.ir.traits import is_contraction, is_operator, maker, place_of
from stack.mesh.meshes import MeshAxis
from stack.passes.sharding.factors import factors_of
from stack.passes.sharding.strategies.axes import Dims, along, first_reduction, reached_factors
from stack.passes.sharding.strategies.draft_shardings import DraftShardings
from stack.passes.sharding.strategies.zigzag import zigzagged
from stack.rewrite import Log, Pass


@dataclass(frozen=True)
class ContextParallel(Pass):
    """Split a dim of the inputs. Split matmuls that have this dim twice, such as scores, too.

    For these matmuls, `ring` splits the sequence axis that is reduced last. The operand that has
    the other one is gathered, or is passed around in steps by pass `ring` (Liu et al., "Ring
    Attention", 2023). `heads` splits another axis, and converts there and back by all-to-alls
    (Jacobs et al., "DeepSpeed Ulysses", 2023). An operator that
    needs the sequence whole, such as attention written by hand, is split so, too.

    Attributes:
        mesh: its axes, as `dp=2, cp=4`.
        axis: the mesh axis to split over.
        batch: name patterns of the parameters that have the dim.
        dim: the number of the dim.
        by: `ring` or `heads`.
        order: `sequence`, or `zigzag` for rings: each rank has a block from the beginning of the
            sequence and one from its end, so that a causal mask leaves all ranks equal work.
    """

    mesh: str = ""
    axis: str = "cp"
    batch: tuple[str, ...] = ("x", "y")
    dim: int = 1
    by: str = "ring"
    order: str = "sequence"

    def run(self, func: Func, log: Log) -> Func:
        if self.by not in ("ring", "heads"):
            raise UsageError(f"products along the sequence are split by ring or heads: {self.by!r}")
        orders = ("sequence", "zigzag") if self.by == "ring" else ("sequence",)
        if self.order not in orders:
            raise UsageError(f"{self.by}: order is {' or '.join(orders)}, not {self.order!r}")
        places = DraftShardings(func, self.mesh)
        axis = places.axis(self.axis)
        if not log.spend(self.name):
            return func
        inputs: Mapping[Node, int] = dict.fromkeys(places.named(self.batch).values(), self.dim)
        border = frozenset[Node]()
        if self.order == "zigzag":
            func, inputs, border = zigzagged(func, inputs, axis.size)
            places = DraftShardings(func, self.mesh)
        for node in inputs:
            if node in func.params:
                places.split(node, self.dim, axis, str(node.attrs["name"]))
        sequence = along(func, inputs)
        rest = [
            along(func, {node: dim})
            for node in inputs
            for dim in range(node.tensor.rank)
            if dim != self.dim
        ]
        forward = frozenset(topological(func.results[:1]))  # gradients take the shardings of these
        for node in func.nodes:
            if node in border:
                continue  # results in the order of the sequence are put together by the planner
            dims = sequence.get(node, frozenset[int]())
            is_whole = self.by == "heads" and place_of(node) == 0 and _reads_whole(node, sequence)
            is_product = is_contraction(node) and len(dims) > 1
            if (is_product or is_whole) and node in forward:
                places.split(node, self._dim(places, node, axis, sequence, rest), axis)
            elif len(dims) == 1 and self.by == "ring":
                places.split(node, min(dims), axis)
        return places.func()

    def _dim(
        self, places: DraftShardings, node: Node, axis: MeshAxis, sequence: Dims, rest: list[Dims]
    ) -> int:
        func = places.old
        if self.by == "ring":
            return max(sequence[node], key=lambda dim: first_reduction(func, node, dim))
        factors = factors_of(maker(node))
        left, right = ({f for d in dims for f in d} for dims in factors.operands[:2])
        others = {dim for found in rest for dim in found.get(node, ())}
        for dim, names in enumerate(factors.results[0]):
            is_apart = dim not in others and set(names[:1]) <= (left & right) - factors.fixed
            if names and is_apart and factors.sizes[names[0]] % axis.size == 0:
                return dim
        raise UsageError(
            f"%{func.body.names.get(node, node.op)}: {node.type} has no axis of heads that"
            f" {axis.size} ranks share evenly; by=ring needs none"
        )


def _reads_whole(node: Node, sequence: Dims) -> bool:
    """True for the result of an operator, such as attention, that needs the sequence whole."""
    own = maker(node)
    if not is_operator(own) or len(node.types) > 1:
        return False
    return not reached_factors(own, sequence).isdisjoint(factors_of(own).fixed)
