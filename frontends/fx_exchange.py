"""Sums in the other order: sum_k a_mk (b c^T)_mk is sum_n b_mn (a c)_mn.

Where the product a c is computed anyway, the right side reads rows of n elements, and the table
b c^T has one use less: in the gradient of a weighted mean, what is left of it goes into products.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.fx import Graph, Node
from torch.fx.node import map_arg

aten = torch.ops.aten

PRODUCTS = (aten.mm.default, aten.bmm.default)
_SAME = frozenset({
    aten.detach, aten.alias, aten.clone, aten._to_copy, aten.view, aten._unsafe_view,
    aten.reshape, aten.expand, aten.squeeze, aten.unsqueeze,
})  # fmt: skip


def exchange_sums(graph: Graph) -> int:
    """Rewrite such sums where that reads less; returns how many."""
    order = {node: i for i, node in enumerate(graph.nodes)}
    count = 0
    for node in order:
        if _is_sum_of_product(node):
            pairs = (p for p in _exchanged(node) if max(order[n] for n in p) < order[node])
            found = next(pairs, None)
            if found is not None:
                _rewrite(graph, node, *found)
                count += 1
    return count


def _is_sum_of_product(node: Node) -> bool:
    """Whether a node sums a product along the last axis."""
    if node.target is not aten.sum.dim_IntList or node.kwargs:
        return False
    factors: Any = node.args[0]
    axes: Any = node.args[1] or ()
    last = factors.meta["val"].dim() - 1
    return factors.target is aten.mul.Tensor and len(axes) == 1 and axes[0] in (-1, last)


def _exchanged(node: Node) -> Iterator[tuple[Node, Node]]:
    """b and a c: an operand of one product, and another product."""
    factors: Any = node.args[0]
    for table, weights in (factors.args, factors.args[::-1]):
        if not isinstance(table, Node) or not isinstance(weights, Node):
            continue
        product = _behind(table)
        if product.target not in PRODUCTS:
            continue
        b, turned = product.args
        c = _turned(turned)
        if c is None or b.meta["val"].numel() >= product.meta["val"].numel():
            continue
        for other in _reads(_behind(weights)):
            if _behind(other.args[1]) is _behind(c):
                if other.meta["val"].shape == b.meta["val"].shape:
                    yield b, other


def _behind(node: Any) -> Any:
    """What a node is a copy of, in another type or with leading axes grouped otherwise."""
    while getattr(node.target, "overloadpacket", None) in _SAME:
        inner = node.args[0]
        old, new = inner.meta["val"].shape, node.meta["val"].shape
        if old[-2:] != new[-2:] or old.numel() != new.numel():
            break
        node = inner
    return node


def _turned(node: Any) -> Node | None:
    """What a node is the transpose of, in its last two axes."""
    if node.target is aten.permute.default:
        rank = node.meta["val"].dim()
        order = [d % rank for d in node.args[1]]
        if order == [*range(rank - 2), rank - 1, rank - 2]:
            return node.args[0]
    return None


def _reads(node: Node) -> Iterator[Node]:
    """Products that read a node, through copies."""
    pending = list(node.users)
    while pending:
        user = pending.pop()
        if user.target in PRODUCTS:
            if _behind(user.args[0]) is node:
                yield user
        elif getattr(user.target, "overloadpacket", None) in _SAME and _behind(user) is node:
            pending.extend(user.users)


def _rewrite(graph: Graph, node: Node, b: Node, made: Node) -> None:
    value = node.meta["val"]
    kind = value.dtype if value.dtype.itemsize > 2 else torch.float32

    def call(target: Any, *args: Any, **options: Any) -> Node:
        new = graph.call_function(target, args, options)
        new.meta = {k: v for k, v in node.meta.items() if k != "tensor_meta"}
        examples = map_arg(args, lambda n: n.meta["val"])
        new.meta["val"] = target(*examples, **options)
        return new

    with graph.inserting_before(node), value.fake_mode:
        b, made = (call(aten._to_copy.default, x, dtype=kind) for x in (b, made))
        total = call(aten.sum.dim_IntList, call(aten.mul.Tensor, b, made), [-1])
        total = call(aten._to_copy.default, total, dtype=value.dtype)
        shaped = call(aten.view.default, total, list(value.shape))
    node.replace_all_uses_with(shaped)
    graph.erase_node(node)
