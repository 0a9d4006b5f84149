"""Complete the source lines of a block: nodes that passes add get the lines of what they serve."""

from __future__ import annotations

from stack.ir.node import Block, Node


def with_lines(group: Node) -> Node:
    """Returns a fusion, stream or kernel in whose blocks every node has source lines, see
    `located`.
    """
    return group.rebuilt(blocks=[located(block) for block in group.blocks])


def located(block: Block) -> Block:
    """Gives each node without source lines those of a node that uses it, or else of an operand.

    So index arithmetic has the line of its load, and a loop that of its result. A block without
    any line stays as it is.
    """
    nodes = block.all_nodes
    if not block.locs or all(node in block.locs for node in nodes):
        return block
    lines = dict(block.locs)
    users: dict[Node, list[Node]] = {}
    for node in nodes:
        for need in _needs(node):
            users.setdefault(need, []).append(node)
    for node in reversed(nodes):
        _fill(lines, node, users.get(node, ()))
    for node in nodes:
        _fill(lines, node, _needs(node))
    for node in reversed(nodes):  # what serves a node that only its operands located
        _fill(lines, node, users.get(node, ()))
    return Block(block.params, block.results, block.names, lines)


def _needs(node: Node) -> list[Node]:
    """The values that a node needs: its operands, and the results of its open blocks, such as loop
    bodies.
    """
    return [*node.args, *(r for b in node.blocks if b.is_open for r in b.results)]


def _fill(
    lines: dict[Node, tuple[str, ...]], node: Node, others: list[Node] | tuple[Node, ...]
) -> None:
    if node not in lines:
        found = next((lines[other] for other in others if other in lines), None)
        if found is not None:
            lines[node] = found
