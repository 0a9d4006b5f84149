"""Groups of several matmuls: one launch for all, or one kernel for each, what is faster.

Horizontal fusion puts matmuls of one left operand into one launch, such as q, k and v. Each matmul
has programs of its own, which also compute its epilogue. One matmul alone leaves multiprocessors
idle in its last wave. Together the matmuls leave fewer idle.
"""

from __future__ import annotations

from collections.abc import Sequence

from stack.ir.builder import Builder, param, results_of
from stack.ir.control_ops import result_type
from stack.ir.node import Block, Node, topological
from stack.ir.traits import is_fusion, items_of
from stack.passes.gpu_products.tile_choice import Product, product_of
from stack.passes.tiling.contraction import parts_of, products_of, rest_of
from stack.passes.tiling.single_ops import alone
from stack.rewrite.engine import inline_block, replace
from stack.schedule import schedules_of, with_schedules


def horizontal_products(body: Block) -> list[Product]:
    """Describes the independent matmuls of a group for the cost model.

    Empty if there is one matmul, or if a result depends on several. Raises CannotTile.
    """
    return [product_of(part_of(body, results), [dot]) for dot, results in parts_of(body)]


def part_of(body: Block, results: Sequence[Node]) -> Block:
    """Returns a copy of a group's body that computes only the given results."""
    used = topological(results)
    return Block([p for p in body.params if p in used], results, body.names, body.locs)


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


UNFUSED = "unfused"  # replaces the tile in a schedule


def unfuse_gemms(block: Block) -> Block:
    """Splits each group of a block whose schedule is `unfused`."""
    changed: dict[Node, Node] = {}
    for node in block.nodes:
        if not is_fusion(node) or schedules_of(node)[:1] != (UNFUSED,):
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
    outside = dict(zip(body.params, group.args, strict=True))
    found: dict[int, Node] = {}
    for _, results in parts_of(body):
        block = part_of(body, results)
        mine = [i for i, r in enumerate(body.results) if r in results]
        made = _fusion(group, [outside[p] for p in block.params], block)
        found |= zip(mine, results_of(made), strict=True)
    if found:
        return [found[i] for i in sorted(found)]
    # the rest of the group has the first matmul and the epilogue, which reads the other matmuls
    bare = {
        dot: alone(Node("dot", [outside[a] for a in dot.args], dot.attrs, dot.type))
        for dot in products_of(body)[1:]
    }
    others = [r for r in body.results if r not in bare]
    rest = results_of(_fusion(group, *rest_of(group, bare, others)))
    return [bare[r] if r in bare else rest[others.index(r)] for r in body.results]


def _fusion(group: Node, args: Sequence[Node], block: Block) -> Node:
    """Builds a group that computes a part of another one."""
    made = Node("fusion", args, group.attrs, result_type(block.type), (block,))
    return with_schedules(made, ())
