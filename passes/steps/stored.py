"""Whether the turns of a loop store to places of their own."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence

from stack.ir.builder import constant, make
from stack.ir.dim import Dim, mul
from stack.ir.kernel_ops import access_parts, loop_parts
from stack.ir.node import Block, Node
from stack.ir.traits import is_item, is_load, is_loop, is_number, is_store, number
from stack.passes.steps.linear import is_apart, linear, terms_of


def why_shared(loop: Node, own: bool = False) -> str:
    """What a turn of a loop has to do with another turn's stores; "" where that is nothing.

    Turns are apart where some index of each store moves with the loop's variable by more than the
    store spans along it, and what the loop carries is read at the turn's own place alone.

    Args:
        loop: the loop.
        own: memory that the loop does not carry is each turn's own, as it is of a program.
    """
    block = loop.blocks[0]
    var = block.params[0]
    nodes, held = block.all_nodes, memory_of(block)
    inner = {n.blocks[0].params[0] for n in nodes if is_loop(n)}
    stores = [node for node in nodes if is_store(node)]
    for node in nodes:
        if is_load(node) and held(node.args[0]) in block.params:
            mine = [s for s in stores if held(s) is held(node.args[0])]
            if not all(_is_at_own_place(node, store, var, inner) for store in mine):
                return f"a turn of the loop along {var.attrs['name']} reads what another one stores"
        if is_store(node) and not _is_apart(node, var, inner):
            if own and held(node) not in block.params:
                continue
            name = var.attrs["name"]
            return f"two turns of the loop along {name} may store to one place"
    return ""


def why_kept(loop: Node) -> str:
    """Why turns of a loop cannot stand beside each other: they use one memory; "" if they do not.

    Memory that a loop does not carry, as `stage` makes it, is free again for the next turn.
    """
    block = loop.blocks[0]
    held = memory_of(block)
    if any(is_store(node) and held(node) not in block.params for node in block.all_nodes):
        return f"each turn of the loop along {block.params[0].attrs['name']} keeps values in memory"
    return ""


def _is_at_own_place(load: Node, store: Node, var: Node, inner: Collection[Node]) -> bool:
    """Whether a load and a store share an index that differs in every iteration."""
    places, others = access_parts(load)[0], access_parts(store)[0]
    sizes = zip(_extents(load), _extents(store), strict=True)
    for place, other, size in zip(places, others, sizes, strict=True):
        if place is not other or place.tensor.rank or size != (1, 1):
            continue
        step = linear(place, var)
        if step is not None and step[0] and (step[1] is None or step[1].vars.isdisjoint(inner)):
            return True
    return False


def _extents(access: Node) -> list[Dim]:
    """The extent of an access along each axis of its memory."""
    index, _, _ = access_parts(access)
    tile = (access if is_load(access) else access.args[1]).tensor
    memory = access.args[0].tensor
    lead = memory.rank - tile.rank
    is_block = not any(i.tensor.rank for i in index)
    return [tile.shape[k - lead] if is_block and k >= lead else 1 for k in range(memory.rank)]


def _is_apart(store: Node, var: Node, inner: Collection[Node]) -> bool:
    index, _, _ = access_parts(store)
    memory, wide = store.args[0].tensor, _extents(store)
    ones = next((k for k, size in enumerate(wide) if size != 1), len(index))
    wholes = _wholes(index[:ones], memory.shape[:ones])
    extent = int(var.attrs["extent"])
    for place, size in (*zip(index, wide, strict=True), *((whole, 1) for whole in wholes)):
        found = linear(place, var)
        terms = None if found is None else terms_of(found[1], inner)
        if found is None or terms is None or not isinstance(size, int):
            continue
        if is_apart(found[0], extent, terms, size):
            return True
    return False


def _spread(place: Node) -> Node:
    """What is spread over a tile."""
    return place.args[0] if place.op == "broadcast" else place


def _is(node: Node, value: object) -> bool:
    return is_number(node) and number(node) == value


def _wholes(index: Sequence[Node], shape: Sequence[Dim]) -> Iterator[Node]:
    """Numbers of which neighbouring indices are the digits: x, for x // 5 and x % 5."""
    for last in range(len(index) - 1, 0, -1):
        number_of, size = _spread(index[last]), shape[last]
        for axis in range(last - 1, -1, -1):
            if number_of.op != "rem" or not _is(number_of.args[1], size):
                break
            whole, digit = number_of.args
            size, place = mul(size, shape[axis]), _spread(index[axis])
            if place.op == "div" and place.args == (whole, digit):
                yield whole
                break
            if place.op != "rem" or place.args[0] is not make("div", (whole, digit)):
                break
            number_of = make("rem", (whole, constant(size, whole.dtype)))


def memory_of(block: Block) -> Callable[[Node], Node]:
    """Tells the parameter or allocation of a kernel whose state a value is."""
    before: dict[Node, Node] = {}
    for node in block.all_nodes:
        if is_loop(node):
            starts = loop_parts(node.args, node.attrs)[1]
            before.update(zip(node.blocks[0].params[1:], starts, strict=True))

    def found(memory: Node) -> Node:
        while True:
            if is_store(memory):
                memory = memory.args[0]
            elif is_loop(memory):
                memory = loop_parts(memory.args, memory.attrs)[1][0]
            elif is_item(memory) and is_loop(memory.args[0]):
                loop = memory.args[0]
                memory = loop_parts(loop.args, loop.attrs)[1][int(memory.attrs["index"])]
            elif memory in before:
                memory = before[memory]
            else:
                return memory

    return found
