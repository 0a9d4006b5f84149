"""Convert a planned program to the program that every rank runs on its shards."""

from __future__ import annotations

from stack.ir.builder import Builder
from stack.ir.node import Block, Node, is_inline
from stack.ir.traits import is_item, is_operator, runs_blocks
from stack.mesh.meshes import Mesh
from stack.mesh.sharding import replicated
from stack.passes.sharding.collectives import moved
from stack.passes.sharding.rank_code import RankNode, local_type, local_types


def partitioned(block: Block, mesh: Mesh) -> Block:
    """Returns the block as one rank runs it: values are shards, and reshards are collectives."""
    b = Builder()
    done: dict[Node, Node] = {}
    for param in block.params:
        done[param] = Node("param", (), param.attrs, local_type(param.tensor))
    for node in block.nodes:
        b.loc = block.locs.get(node, ())
        done[node] = _node(b, node, done, mesh)
        if node in block.names:
            b.note(done[node], block.names[node])
    params = [done[p] for p in block.params]
    return b.block(params, [done[r] for r in block.results])


def _node(b: Builder, node: Node, done: dict[Node, Node], mesh: Mesh) -> Node:
    args = [done[a] for a in node.args]
    if is_inline(node):
        return node
    if is_item(node):
        return b.item(*args, index=node.attrs["index"])
    if runs_blocks(node) and not is_operator(node):
        blocks = [partitioned(inner, mesh) for inner in node.blocks]
        return b.op(node.op, args, node.attrs, blocks, local_types(node.type))
    if node.op == "reshard":
        source = node.args[0].tensor.sharding or replicated(mesh, node.tensor.rank)
        target = node.tensor.sharding or replicated(mesh, node.tensor.rank)
        return moved(b, args[0], node.tensor, source, target)
    return RankNode(b, mesh, node).made(args)
