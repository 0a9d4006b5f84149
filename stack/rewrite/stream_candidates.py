"""Finds values that never need memory: matmul results much larger than the operands, up to a
reduction.

Attention scores are an example. A backend with streams computes them tile by tile where they are
reduced (Dao et al., "FlashAttention", 2022). So recomputing them costs operations, and keeping them
costs a table in memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from stack.ir.cost import cost
from stack.ir.node import Node, deps
from stack.ir.ops import is_whole_view
from stack.ir.traits import fold_of, is_contraction, is_elementwise, repeats
from stack.rewrite.group import bytes_of, estimate


def streamed(nodes: Iterable[Node], results: Iterable[Node], balance: float) -> frozenset[Node]:
    """Returns matmuls whose results are cheaper to recompute than to store because they are only
    reduced, as attention scores are, and the elementwise ops between them and the reductions.

    `balance`: matmul operations in the time of one byte of memory traffic; with 0 the result is
    empty.
    """
    if not balance:
        return frozenset()
    listed = list(nodes)
    users: dict[Node, list[Node]] = {}
    for node in listed:
        for arg in dict.fromkeys(deps(node)):
            users.setdefault(arg, []).append(node)
    kept, found = set(results), set[Node]()
    for node in listed:
        if is_contraction(node) and _is_cheap(node, balance):
            found |= _chain(node, users, kept)
    return frozenset(found)


def _is_cheap(product: Node, balance: float) -> bool:
    read = sum(estimate(a.tensor.size) for a in product.args)
    flops = estimate(cost(product).flops)
    return estimate(product.tensor.size) > read and flops < balance * 2 * bytes_of(product)


def _chain(product: Node, users: Mapping[Node, Sequence[Node]], kept: set[Node]) -> set[Node]:
    """Returns a matmul and the elementwise ops that compute values of the same size from it. Empty
    if a value among them is in `kept`, or has another reader than these ops and reductions.
    """
    size = estimate(product.tensor.size)
    chain, pending = {product}, [product]
    while pending:
        for user in users.get(pending.pop(), ()):
            if user in chain:
                continue
            if _is_mapped(user) and estimate(user.tensor.size) == size:
                chain.add(user)
                pending.append(user)
            elif not fold_of(user):
                return set()
    return chain if kept.isdisjoint(chain) else set()


def _is_mapped(node: Node) -> bool:
    """True if a node is elementwise, or a view that shows each element once: a reshape or a
    transpose, but no broadcast.
    """
    return is_elementwise(node) or (is_whole_view(node) and not repeats(node))
