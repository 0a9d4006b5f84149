"""Names of values: which nodes have one, and how names stay unique and parseable."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from stack.ir.data import Data
from stack.ir.types import TensorType

if TYPE_CHECKING:
    from stack.ir.node import Block, Node


def legal_name(hint: str) -> str:
    """The closest name that the IR text allows: letters, digits, `_` and inner dots."""
    if hint.isascii() and hint.isidentifier():
        return hint
    return "".join(c if c.isalnum() or c in "_." else "_" for c in hint).strip(".") or "v"


def unique_name(hint: str, taken: set[str], counts: dict[str, int]) -> str:
    """Returns a name that is not taken, and takes it: `x`, `x_1`, `x_2`, ..."""
    hint = legal_name(hint)
    name = hint
    while name in taken:
        counts[hint] = counts.get(hint, 0) + 1
        name = f"{hint}_{counts[hint]}"
    taken.add(name)
    return name


def is_inline(node: Node) -> bool:
    """True if a node prints inside its users instead of on its own line: scalar constants."""
    if node.op != "const" or not isinstance(node.type, TensorType):
        return False
    value = node.attrs.get("value")
    is_scalar = node.type.rank == 0 and node.type.space == "value"
    return is_scalar and isinstance(value, Data) and value.shape == ()


def own_names(block: Block) -> list[Node]:
    """Returns the nodes that need a name in the text of a closed block: those of the block and of
    its open blocks, without parameters and scalar constants.
    """
    found: dict[Node, None] = {}
    pending = deque([block])
    while pending:
        for node in pending.popleft().nodes:
            if node.op != "param" and not (node.op == "const" and is_inline(node)):
                found[node] = None  # two loops may contain the same node
            if node.blocks:
                pending.extend(b for b in node.blocks if b.is_open)
    return list(found)


def name_table(block: Block, hints: Mapping[Node, str]) -> dict[Node, str]:
    """A unique name for every node of a closed block, derived from its hint or its op."""
    nodes = own_names(block)
    taken = {str(p.attrs["name"]) for p in block.params}
    taken.update(_variables(nodes))
    counts: dict[str, int] = {}
    return {n: unique_name(hints.get(n) or n.op, taken, counts) for n in nodes}


def _variables(nodes: Iterable[Node]) -> Iterable[str]:
    for node in nodes:
        for block in node.blocks:
            if block.is_open:
                yield from (str(v.attrs["name"]) for v in block.params)
