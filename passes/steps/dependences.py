"""Dependence analysis: whether each iteration of a loop stores to its own elements."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from stack.ir.builder import constant, make
from stack.ir.dim import Dim, mul
from stack.ir.kernel_ops import access_parts
from stack.ir.memory import memory_of
from stack.ir.node import Node
from stack.ir.traits import (
    is_load,
    is_loop,
    is_memory,
    is_store,
    number,
    repeated,
)
from stack.passes.steps.affine import index_of, is_apart


def why_shared(loop: Node, own: bool = False) -> str:
    """Returns why an iteration of a loop depends on the stores of another one; "" if no iteration
    does.

    Iterations are independent if some index of each store advances by more than the store covers,
    and if loads of the memory that the loop carries only read elements of their own iteration. They
    may store to one element if they store the same value: attribute `overlap` of a loop says so.

    Args:
        loop: the loop.
        own: whether memory that the loop does not carry is private to an iteration, as local memory
            is private to a program or a thread.
    """
    block = loop.blocks[0]
    var = block.params[0]
    name = var.attrs["name"]
    nodes, held = block.all_nodes, memory_of(block)
    inner = {n.blocks[0].params[0] for n in nodes if is_loop(n)}
    stores = [node for node in nodes if is_store(node)]
    for node in nodes:
        if is_load(node) and held(node.args[0]) in block.params:
            mine = [s for s in stores if held(s) is held(node.args[0])]
            if not all(_is_at_own_place(node, store, var, inner) for store in mine):
                return f"an iteration of the loop over {name} reads what another one stores"
        if is_store(node) and not _is_apart(node, var, inner):
            is_carried = held(node) in block.params
            if loop.attrs.get("overlap") if is_carried else own:
                continue
            is_only = [s for s in stores if held(s) is held(node)] == [node]
            if is_only and _is_same(node, loop):
                continue
            return f"two iterations of the loop over {name} may store to one element"
    return ""


def why_not_repeated(loop: Node) -> str:
    """Returns why an iteration of a loop cannot be executed a second time, after other iterations,
    as overlapping tiles do; "" if it can.

    Iterations are independent, carry memory only, and none reads memory that the loop stores to.
    """
    block = loop.blocks[0]
    name, held = block.params[0].attrs["name"], memory_of(block)
    if not all(map(is_memory, block.params[1:])):
        return f"the loop over {name} carries a value: its iterations cannot be repeated"
    if any(is_load(n) and held(n.args[0]) in block.params for n in block.all_nodes):
        return f"the loop over {name} reads what it stores: its iterations cannot be repeated"
    return why_shared(loop)


def why_kept(loop: Node) -> str:
    """Returns why a loop cannot be unrolled: all of its iterations use the same local memory; "" if
    it can.

    Memory that the loop does not carry, as `stage` allocates it, is reused by each iteration.
    """
    block = loop.blocks[0]
    held = memory_of(block)
    if any(is_store(node) and held(node) not in block.params for node in block.all_nodes):
        axis = block.params[0].attrs["name"]
        return f"all iterations of the loop over {axis} use the same local memory"
    return ""


def _is_at_own_place(load: Node, store: Node, var: Node, inner: Collection[Node]) -> bool:
    """True if a load and a store have an index in common that differs in every iteration of the
    loop over `var`, so that no iteration loads what another one stores.
    """
    places, others = access_parts(load)[0], access_parts(store)[0]
    sizes = zip(_extents(load), _extents(store), strict=True)
    for place, other, size in zip(places, others, sizes, strict=True):
        if place is not other or place.tensor.rank or size != (1, 1):
            continue
        found = index_of(place).along(var)
        if found and found[0] and all(t.vars.isdisjoint(inner) for t in found[1].terms):
            return True
    return False


def _is_same(store: Node, loop: Node) -> bool:
    """True if all iterations of a loop store the same value to the same element."""
    block = loop.blocks[0]
    carried = {v for n in block.all_nodes if is_loop(n) for v in n.blocks[0].params[1:]}
    varying = {*block.params, *carried}
    return all(varying.isdisjoint(a.vars) for a in store.args[1:])


def _extents(access: Node) -> list[Dim]:
    """Returns how many elements a load or store covers along each axis of its memory."""
    index, _, _ = access_parts(access)
    tile = (access if is_load(access) else access.args[1]).tensor
    memory = access.args[0].tensor
    lead = memory.rank - tile.rank
    is_block = not any(i.tensor.rank for i in index)
    return [tile.shape[k - lead] if is_block and k >= lead else 1 for k in range(memory.rank)]


def _is_apart(store: Node, var: Node, inner: Collection[Node]) -> bool:
    """True if different iterations store to disjoint elements."""
    index, _, _ = access_parts(store)
    memory, wide = store.args[0].tensor, _extents(store)
    ones = next((k for k, size in enumerate(wide) if size != 1), len(index))
    wholes = _wholes(index[:ones], memory.shape[:ones])
    places = (*zip(index, wide, strict=True), *((whole, 1) for whole in wholes))
    return any(isinstance(n, int) and is_apart(place, var, inner, n) for place, n in places)


def _wholes(index: Sequence[Node], shape: Sequence[Dim]) -> Iterator[Node]:
    """Yields linear indices that several neighbouring indices of an access were computed from by
    div and rem: x, for the indices x // 5 and x % 5.
    """
    for last in range(len(index) - 1, 0, -1):
        number_of, size = repeated(index[last]), shape[last]
        for axis in range(last - 1, -1, -1):
            if number_of.op != "rem" or number(number_of.args[1]) != size:
                break
            whole, digit = number_of.args
            size, place = mul(size, shape[axis]), repeated(index[axis])
            if place.op == "div" and place.args == (whole, digit):
                yield whole
                break
            if place.op != "rem" or place.args[0] is not make("div", (whole, digit)):
                break
            number_of = make("rem", (whole, constant(size, whole.dtype)))
