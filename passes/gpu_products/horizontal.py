"""Horizontal fusion: matmuls of one left operand in one launch, such as q, k and v.

Each matmul has programs of its own, which also compute its epilogue. One matmul alone leaves
multiprocessors idle in its last wave. Together the matmuls leave fewer idle.
"""

from __future__ import annotations

from collections.abc import Sequence

from stack.ir.builder import Builder, param
from stack.ir.control_ops import result_type
from stack.ir.node import Block, Node, topological
from stack.passes.gpu_products.tile_choice import Product, product_of
from stack.passes.tiling.multi_gemm import parts_of
from stack.rewrite.engine import inline_block


def horizontal_products(body: Block) -> list[Product]:
    """Describes the independent matmuls of a group for the cost model.

    Empty if there is one matmul, or if a result depends on several. Raises CannotTile.
    """
    return [product_of(part_of(body, results), [dot]) for dot, results in parts_of(body)]


def part_of(body: Block, results: Sequence[Node]) -> Block:
    """Returns a copy of a group's body that computes only the given results."""
    used = topological(results)
    return Block([p for p in body.params if p in used], results, body.names, body.locs)


def alone_of(group: Node) -> list[tuple[Node, list[int]]]:
    """Splits a group by matmul. Returns one group for each, with the numbers of its results."""
    body = group.blocks[0]
    outside = dict(zip(body.params, group.args, strict=True))
    attrs = unscheduled(group)
    made: list[tuple[Node, list[int]]] = []
    for _, results in parts_of(body):
        block = part_of(body, results)
        args = [outside[p] for p in block.params]
        part = Node("fusion", args, attrs, result_type(block.type), (block,))
        made.append((part, [i for i, r in enumerate(body.results) if r in results]))
    return made


def unscheduled(group: Node) -> dict[str, object]:
    """Returns the attributes of a group without its schedules."""
    return {k: v for k, v in group.attrs.items() if k != "schedule"}


def side_by_side(groups: Sequence[Node]) -> Node:
    """Merges groups into one, which returns the results of all of them in order."""
    params: dict[Node, Node] = {}
    results: list[Node] = []
    b = Builder()
    for group in groups:
        args = [params.setdefault(a, param(f"p{len(params)}", a.type)) for a in group.args]
        results.extend(inline_block(group.blocks[0], args, b))
    block = b.block(list(params.values()), results)
    attrs = {"kind": "gemm", "name": "_and_".join(str(g.attrs["name"]) for g in groups)}
    return Node("fusion", list(params), attrs, result_type(block.type), (block,))
