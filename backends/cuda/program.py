"""The order of the statements of one program of a kernel."""

from __future__ import annotations

from collections.abc import Sequence

from stack.ir.node import Block, Node, walk
from stack.ir.traits import is_item, is_loop


def grid_of(block: Block) -> tuple[list[Node], Block]:
    """Returns the nested grid loops of a kernel, outermost first, and the innermost body.

    One program, which is one thread block, executes the body for one index of each loop.
    """
    found: list[Node] = []
    while True:
        makers = {r.args[0] if is_item(r) else r for r in block.results}
        if len(makers) != 1:
            return found, block
        (loop,) = makers
        if not is_loop(loop, "grid"):
            return found, block
        found.append(loop)
        block = loop.blocks[0]


def statements(block: Block, loops: Sequence[Node], program: Block) -> list[Node]:
    """The statements that one program executes, in order.

    Statements outside the innermost grid loop are delayed until their first use, so that they take
    no registers before.
    """
    blocks = [block, *(n.blocks[0] for n in loops)][: len(loops)]
    beside = {n for b, loop in zip(blocks, loops, strict=True) for n in b.nodes if n is not loop}
    found: dict[Node, None] = {}
    pending = list(reversed(program.nodes))
    while pending:
        node = pending[-1]
        inner = [n for b in node.blocks for _, n in walk(b)]
        ends = [r for n in (node, *inner) for b in n.blocks for r in b.results]
        needs = dict.fromkeys(a for n in (node, *inner) for a in n.args) | dict.fromkeys(ends)
        left = [a for a in needs if a in beside and a not in found]
        if left:
            pending += reversed(left)
        else:
            found.setdefault(pending.pop())
    return list(found)
