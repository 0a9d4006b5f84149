"""Whether the turns of a loop store to places of their own."""

from __future__ import annotations

from collections.abc import Collection

from stack.ir.kernel_ops import access_parts
from stack.ir.node import Block, Node
from stack.ir.traits import is_load, is_loop, is_store
from stack.passes.steps.linear import linear, spans


def why_shared(loop: Node) -> str:
    """What a turn of a loop has to do with another turn's stores; "" where that is nothing.

    Turns are apart where some index of each store moves with the loop's variable by more than the
    store spans along it, and nothing that the loop carries is read.
    """
    block = loop.blocks[0]
    var = block.params[0]
    carried = set(block.params[1:])
    nodes = _inside(block)
    inner = {n.blocks[0].params[0] for n in nodes if is_loop(n)}
    for node in nodes:
        if is_load(node) and _origin(node.args[0], carried) is not None:
            return f"a turn of the loop along {var.attrs['name']} reads what another one stores"
        if is_store(node) and not _is_apart(node, var, inner):
            name = var.attrs["name"]
            return f"two turns of the loop along {name} may store to one place"
    return ""


def _inside(block: Block) -> list[Node]:
    found: list[Node] = []
    for node in block.nodes:
        found.append(node)
        for inner in node.blocks:
            found += _inside(inner)
    return found


def _origin(memory: Node, carried: set[Node]) -> Node | None:
    """The memory that a loop carries of which this is a state; None for other memory."""
    while is_store(memory):
        memory = memory.args[0]
    if is_loop(memory) or memory.op == "item":
        return memory
    return memory if memory in carried else None


def _is_apart(store: Node, var: Node, inner: Collection[Node]) -> bool:
    index, _, _ = access_parts(store)
    tile = store.args[1].tensor
    lead = store.args[0].tensor.rank - tile.rank
    is_block = not any(i.tensor.rank for i in index)
    for axis, place in enumerate(index):
        found = linear(place, var)
        if found is None:
            continue
        step, rest = found
        wide = tile.shape[axis - lead] if is_block and axis >= lead else 1
        reach = spans(rest, inner) if isinstance(wide, int) else None
        if step and reach is not None and isinstance(wide, int) and abs(step) >= reach + wide:
            return True
    return False
