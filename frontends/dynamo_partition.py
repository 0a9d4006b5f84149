"""What a training step keeps for its backward pass, by price.

Torch's min-cut partitioner never computes a product twice. Where a product is much larger than
what it is made of, and what follows it goes into reductions, a backend with streams keeps it out of
memory; there computing it again in the backward pass costs its flops, and keeping it costs writing
and reading its bytes. What the reductions make of it (a max, a sum) is kept.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from functorch.compile import min_cut_rematerialization_partition
from torch._functorch import config
from torch.fx import Graph, GraphModule, Node
from torch.utils.checkpoint import CheckpointPolicy

from stack.frontends.dynamo_elementwise import of_positions, rebuilt
from stack.frontends.fx_early import early, take_out_rows, with_early
from stack.frontends.fx_exchange import exchange_sums
from stack.frontends.fx_images import with_images
from stack.frontends.fx_values import example_of, forward_pass
from stack.frontends.torch_draws import keep_draws

aten = torch.ops.aten

# of their first two operands
PRODUCTS = frozenset({aten.mm.default, aten.bmm.default, aten.mm.dtype, aten.bmm.dtype})
REDUCTIONS = frozenset({aten.amax, aten.amin, aten.sum, aten.mm, aten.bmm})
VIEWS = frozenset({
    aten.view, aten._unsafe_view, aten.reshape, aten.expand, aten.transpose, aten.permute,
    aten.squeeze, aten.unsqueeze, aten.t, aten.clone, aten.detach, aten.alias, aten._to_copy,
})  # fmt: skip
ORDERS = VIEWS - {aten._to_copy, aten.expand}
PARTS = frozenset({aten.slice, aten.select, aten.split, aten.split_with_sizes})


def partition_fn(balance: float) -> Callable[..., tuple[GraphModule, GraphModule]]:
    """A partitioner for AOTAutograd.

    Args:
        balance: flops that the target does in the time of one byte of memory; 0 where a product
            always goes through memory.
    """

    def partition(
        joint: GraphModule, inputs: Any, *, num_fwd_outputs: int, **options: Any
    ) -> tuple[GraphModule, GraphModule]:
        folds: list[Node] = []
        keep_draws(joint.graph)
        if balance:
            exchange_sums(joint.graph)
            take_out_rows(joint.graph)
            joint.graph.eliminate_dead_code()
            folds, between = early(joint.graph, num_fwd_outputs)
            again = recomputed(joint.graph, num_fwd_outputs, balance)
            again += [*rebuilt(joint.graph, num_fwd_outputs), *between]
            again += of_positions(joint.graph, num_fwd_outputs)
            for node in (*again, *_copies_of_inputs(joint.graph)):
                node.meta["recompute"] = CheckpointPolicy.MUST_RECOMPUTE
                node.meta["ac_graph_id"] = 0  # as if one checkpoint held all of them

        def cut(count: int) -> tuple[GraphModule, GraphModule]:
            # torch keeps a view as strides; to us a transposed copy would be work
            with config.patch(recompute_views=True):  # pyright: ignore[reportAttributeAccessIssue]
                return min_cut_rematerialization_partition(
                    joint, inputs, num_fwd_outputs=count, **options
                )

        passes = with_early(joint, num_fwd_outputs, folds, cut)
        return with_images(passes, num_fwd_outputs) if balance else passes

    return partition


def keep_inputs(
    joint: GraphModule, inputs: Any, *, num_fwd_outputs: int, **options: Any
) -> tuple[GraphModule, GraphModule]:
    """A partitioner that leaves the forward pass as it is: the backward pass gets its inputs.

    What is drawn at random is kept too: it could not be drawn again.
    """
    _, forward = forward_pass(joint.graph, num_fwd_outputs)
    for node in forward:
        if node.op == "call_function" and not _is_random(node):
            node.meta["recompute"] = CheckpointPolicy.MUST_RECOMPUTE
            node.meta["ac_graph_id"] = 0
    return min_cut_rematerialization_partition(
        joint, inputs, num_fwd_outputs=num_fwd_outputs, **options
    )


def _is_random(node: Node) -> bool:
    return torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())


def recomputed(graph: Graph, num_fwd_outputs: int, balance: float) -> list[Node]:
    """The values of the forward pass that are cheaper to compute again than to keep."""
    outputs, forward = forward_pass(graph, num_fwd_outputs)
    found: dict[Node, None] = {}
    for node in graph.nodes:
        if node in forward and _is_cheap(node, balance):
            chain = _chain(node, forward)
            if chain is not None and chain.isdisjoint(outputs):
                chain |= _views_before(chain, forward)
                found.update(dict.fromkeys(n for n in graph.nodes if n in chain))
    return list(found)


def _is_cheap(node: Node, balance: float) -> bool:
    """Whether a node is a product whose flops cost less than its bytes, written and read."""
    if node.target not in PRODUCTS:
        return False
    left, right = (example_of(operand) for operand in node.args[:2])
    made = example_of(node)
    if left is None or right is None or made is None:
        return False
    if made.numel() <= left.numel() + right.numel():
        return False
    flops = 2 * made.numel() * left.shape[-1]
    return flops < balance * 2 * made.numel() * made.element_size()


def _chain(product: Node, forward: set[Node]) -> set[Node] | None:
    """A product and what follows it element by element, up to reductions; None if it ends else."""
    size = product.meta["val"].numel()
    chain, pending = {product}, [product]
    while pending:
        for user in pending.pop().users:
            if user not in forward or user in chain:
                continue
            made = example_of(user)
            if made is not None and made.numel() == size and _is_elementwise(user):
                chain.add(user)
                pending.append(user)
            elif getattr(user.target, "overloadpacket", None) not in REDUCTIONS:
                return None
    return chain


def _views_before(chain: set[Node], forward: set[Node]) -> set[Node]:
    """Views and copies of what the products in and after a chain read: a stream reads through."""
    products = {n for c in chain for n in (c, *c.users) if n.target in PRODUCTS and n in forward}
    found: set[Node] = set()
    pending = [a for p in products for a in p.all_input_nodes if a not in chain]
    while pending:
        node = pending.pop()
        if node not in found and _is_view(node):
            found.add(node)
            pending.extend(node.all_input_nodes)
    return found


def _copies_of_inputs(graph: Graph) -> list[Node]:
    """Inputs in another order, which are in memory as they are."""
    views = {n for n in graph.nodes if n.op == "placeholder"}
    found: list[Node] = []
    for node in graph.nodes:
        if getattr(node.target, "overloadpacket", None) in ORDERS and node.args[0] in views:
            views.add(node)
            found.append(node)
    return found


def _is_view(node: Node) -> bool:
    if node.target is operator.getitem:
        return _is_view(node.args[0])  # pyright: ignore[reportArgumentType]
    return getattr(node.target, "overloadpacket", None) in VIEWS | PARTS


def _is_elementwise(node: Node) -> bool:
    target = node.target
    if not isinstance(target, torch._ops.OpOverload):
        return False
    return target.overloadpacket in VIEWS or torch.Tag.pointwise in target.tags
