"""Splits a group of several matmuls into one kernel for each, if that is faster."""

from __future__ import annotations

from stack.ir.control_ops import result_type
from stack.ir.node import Block, Node
from stack.ir.traits import is_fusion, items_of
from stack.passes.gpu_products.horizontal import alone_of, unscheduled
from stack.passes.gpu_products.tile_choice import first_text
from stack.passes.tiling.contraction import rest_of
from stack.passes.tiling.multi_gemm import products_of
from stack.passes.tiling.single_ops import alone
from stack.rewrite.engine import replace

UNFUSED = "unfused"  # replaces the tile in a schedule


def is_unfused(group: Node) -> bool:
    """True if the schedule of a group asks for a separate kernel for each of its matmuls."""
    return first_text(group) == UNFUSED


def unfuse_gemms(block: Block) -> Block:
    """Splits each group of a block whose schedule is `unfused`."""
    changed: dict[Node, Node] = {}
    for node in block.nodes:
        if not is_fusion(node) or not is_unfused(node):
            continue
        parts = unfused(node)
        if len(parts) == 1:
            changed[node] = parts[0]
            continue
        for item in items_of(node, block.nodes):
            changed[item] = parts[int(item.attrs["index"])]
    return replace(block, changed)


def unfused(group: Node) -> list[Node]:
    """Rewrites a group with several matmuls so that each is computed by a kernel of its own.
    Returns the nodes that replace the group's results.
    """
    body = group.blocks[0]
    found: dict[int, Node] = {}
    for part, mine in alone_of(group):
        for place, i in enumerate(mine):
            found[i] = _item(part, place, len(mine), body.results[i])
    return [found[i] for i in sorted(found)] or _unfused_gemms(group, body)


def _item(group: Node, index: int, count: int, like: Node) -> Node:
    return group if count == 1 else Node("item", (group,), {"index": index}, like.type)


def _unfused_gemms(group: Node, body: Block) -> list[Node]:
    """Rewrites a group: each matmul but the first gets a kernel of its own.

    The rest of the group is one kernel with the first matmul and the epilogue, which reads the
    other results from memory. Returns the results of the group.
    """
    outside = dict(zip(body.params, group.args, strict=True))
    bare = {
        dot: alone(Node("dot", [outside[a] for a in dot.args], dot.attrs, dot.type))
        for dot in products_of(body)[1:]
    }
    others = [r for r in body.results if r not in bare]
    args, block = rest_of(group, bare, others)
    rest = Node("fusion", args, unscheduled(group), result_type(block.type), (block,))
    return [
        bare[r] if r in bare else _item(rest, others.index(r), len(others), r) for r in body.results
    ]
