"""The matmuls that read a weight, through views of it."""

from __future__ import annotations

from collections.abc import Iterator

from stack.ir.func import Func
from stack.ir.node import Node
from stack.ir.traits import is_contraction
from stack.passes.sharding.factors import factors_of

VIEWS = ("transpose", "reshape", "reshard")


def products(func: Func, weight: Node) -> Iterator[tuple[Node, int, dict[int, int]]]:
    """Yields the matmuls that read a weight or a view of it: the matmul, the number of that
    operand, and a map from the weight's dims to the operand's."""
    views = {weight: {dim: dim for dim in range(weight.tensor.rank)}}
    for node in func.nodes:
        if is_contraction(node):
            yield from ((node, i, views[arg]) for i, arg in enumerate(node.args) if arg in views)
        elif node.op in VIEWS and node.args[0] in views:
            factors = factors_of(node)
            heads = {dim[0]: place for place, dim in enumerate(factors.results[0]) if dim}
            went = {
                dim: factors.operands[0][place][0] for dim, place in views[node.args[0]].items()
            }
            views[node] = {dim: heads[factor] for dim, factor in went.items() if factor in heads}
