"""Detection of loops that are long float sums, whose rounding errors grow with their length."""

from __future__ import annotations

from stack.ir.node import Block, Node
from stack.ir.traits import signs
from stack.ir.types import TensorType


def added(kind: object, block: Block, least: int) -> dict[int, Node]:
    """Finds carried values of a serial loop that are sums, with the addend of each iteration.

    Args:
        kind: the kind of the loop.
        block: its body.
        least: fewest iterations of a long sum.
    """
    index, *carried = block.params
    extent = index.attrs.get("extent")
    found: dict[int, Node] = {}
    if kind != "serial" or not isinstance(extent, int) or extent < least:
        return found
    for i, (held, result) in enumerate(zip(carried, block.results, strict=True)):
        if (
            not isinstance(held.type, TensorType)
            or not held.dtype.is_float
            or signs(result) != (1, 1)
        ):
            continue
        others = [a for a in result.args if a is not held]
        if len(others) == 1 and _uses(block, held) == 1 and _uses(block, result) == 1:
            found[i] = others[0]
    return found


def _uses(block: Block, node: Node) -> int:
    """Counts how often the block or its direct inner blocks use a node, as an operand or as a
    result. The count is 1 if only the next iteration reads a carried sum."""
    inner = [r for n in block.nodes for b in n.blocks for r in b.results]
    operands = [a for n in block.nodes for a in n.args]
    return sum(a is node for a in (*operands, *inner, *block.results))
