"""Rebuild a function with the shardings that were decided."""

from __future__ import annotations

from collections.abc import Mapping

from stack.ir.func import Func
from stack.ir.node import Block, Node, is_inline
from stack.ir.streaming import expanded
from stack.ir.traits import is_operator, is_stream
from stack.ir.types import TensorType, TupleType, Type
from stack.passes.sharding.cells import CellGraph, CellValue, Path


def placed(func: Func, program: CellGraph, members: Mapping[Node, Node]) -> Func:
    """Returns the function with the sharding of every value, in every occurrence of its block.

    Args:
        func: the function.
        program: the program with the decided shardings.
        members: for each node of the function, the node of the program that represents it.
    """
    return Func(func.name, _block(program, func.body, (), members), func.level)


def _block(program: CellGraph, block: Block, path: Path, members: Mapping[Node, Node]) -> Block:
    done: dict[Node, Node] = {}
    for node in (*block.params, *block.nodes):
        if is_inline(node):
            done[node] = node
            continue
        like = members.get(node, node)
        inner = () if is_operator(node) else enumerate(node.blocks)
        blocks = [_block(program, b, (*path, (like, i)), {}) for i, b in inner] or node.blocks
        args = [done[a] for a in node.args]
        done[node] = Node(node.op, args, node.attrs, _type(program, like, path), blocks)
    return mapped(block, done)


def _type(program: CellGraph, node: Node, path: Path) -> Type:
    items: list[TensorType] = []
    for index, type_ in enumerate(node.types):
        sharding = program.cell(CellValue(path, node, index)).sharding(program.mesh)
        items.append(type_.with_sharding(sharding))
    return TupleType(tuple(items)) if isinstance(node.type, TupleType) else items[0]


def mapped(block: Block, done: Mapping[Node, Node]) -> Block:
    """Returns the block with its nodes replaced as in `done`; new nodes take the names and source
    lines of the old ones."""
    return Block(
        [done[p] for p in block.params],
        [done[r] for r in block.results],
        {done[n]: name for n, name in block.names.items() if n in done},
        {done[n]: lines for n, lines in block.locs.items() if n in done},
    )


def without_streams(block: Block) -> Block:
    """Returns the block with every stream replaced by a call of its expansion."""
    done: dict[Node, Node] = {p: p for p in block.params}
    for node in block.nodes:
        args = [done[a] for a in node.args]
        if is_stream(node):
            done[node] = Node(
                "call", args, {"name": node.attrs["name"]}, node.type, [expanded(node)]
            )
            continue
        blocks = [without_streams(b) for b in node.blocks]
        done[node] = Node(node.op, args, node.attrs, node.type, blocks)
    return mapped(block, done)
