"""Loops of a kernel: find them by axis, and check conditions that primitives share, such as whether
each iteration stores to its own elements.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

from stack.ir.builder import constant, converted, make, results_of
from stack.ir.dim import Dim, mul
from stack.ir.equivalence import once_in
from stack.ir.kernel_ops import access_parts
from stack.ir.memory import memory_of, starts_of
from stack.ir.node import Block, Node
from stack.ir.traits import (
    is_load,
    is_loop,
    is_memory,
    is_number,
    is_store,
    maker,
    number,
    repeated,
    repeats,
)
from stack.passes.steps.affine import index_of, is_apart
from stack.passes.tiling.frame import Names
from stack.passes.tiling.frame import extent_of as extent_of


class NestedLoop(NamedTuple):
    """A loop node, and the loop nodes that enclose it, outermost first."""

    loop: Node
    around: tuple[Node, ...]


def axis_of(loop: Node) -> str:
    """Returns the name of a loop's variable, by which steps refer to the loop: its axis."""
    return str(loop.blocks[0].params[0].attrs["name"])


@once_in
def all_loops(kernel: Node) -> Sequence[NestedLoop]:
    """All loops of a kernel, outer loops first."""
    pending: list[tuple[Block, tuple[Node, ...]]] = [(kernel.blocks[0], ())]
    found: list[NestedLoop] = []
    for block, around in pending:
        own = [node for node in block.nodes if is_loop(node)]
        found += [NestedLoop(loop, around) for loop in own]
        pending += [(loop.blocks[0], (*around, loop)) for loop in own]
    return found


def bodies(kernel: Node) -> list[Block]:
    """Returns the body of a kernel and those of all its loops, outer ones first."""
    return [kernel.blocks[0], *(loop.blocks[0] for loop, _ in all_loops(kernel))]


def loops_along(kernel: Node, axis: str) -> list[NestedLoop]:
    """Returns all loops over an axis, with the loops that enclose each."""
    return [found for found in all_loops(kernel) if axis_of(found.loop) == axis]


def axes(kernel: Node) -> Mapping[str, int]:
    """Returns the axes of all loops of a kernel, each with its largest extent."""
    found: dict[str, int] = {}
    for loop, _ in all_loops(kernel):
        found[axis_of(loop)] = max(extent_of(loop), found.get(axis_of(loop), 0))
    return found


def nests(kernel: Node) -> list[list[str]]:
    """Returns, for each loop nest at the top of a kernel, the axes of its perfectly nested loops,
    outermost first.

    Loops that carry more than memory are not counted.
    """
    found: list[list[str]] = []
    for node in kernel.blocks[0].nodes:
        chain: list[str] = []
        loop: Node | None = node
        while loop is not None and is_loop(loop) and stores_only(loop):
            chain.append(axis_of(loop))
            result = loop.blocks[0].results[0]
            inner = maker(result)
            loop = inner_loop(loop, axis_of(inner)) if is_loop(inner) else None
        found += [chain] if chain else []
    return found


def why_no_axis(kernel: Node, axis: str) -> str:
    """Returns why a step cannot name an axis: there is no loop over it; "" if there is one."""
    known = axes(kernel)
    if axis in known:
        return ""
    named = ", ".join(f"{name} of {extent}" for name, extent in known.items()) or "none"
    why = f"there is no loop over {axis!r}; the axes are: {named}"
    whole = axis.removesuffix(".0")
    if f"{whole}.1" in known and whole != axis:
        why += f"; a split of {whole} by at least its extent leaves one block, and no {axis}"
    return why


def why_no_memory(kernel: Node, memory: str) -> str:
    """Returns why a step cannot name a memory: no parameter has the name; "" if one has."""
    names = [str(p.attrs["name"]) for p in kernel.blocks[0].params]
    return "" if memory in names else f"no memory {memory!r}; there are: {', '.join(names)}"


def why_not_free(kernel: Node, axis: str) -> str:
    """Returns why loops over an axis are not all serial, or none is there; "" if they are."""
    why = why_no_axis(kernel, axis)
    if why:
        return why
    bound = (loop for loop, _ in loops_along(kernel, axis) if not is_serial(loop))
    return next((f"axis {axis} is bound to {bound_to(loop)}" for loop in bound), "")


def why_no_nest(kernel: Node, axis: str, inner: str) -> str:
    """Returns why loops over `axis` and `inner` are no perfect serial nest; "" if they are."""
    for name in (axis, inner):
        why = why_no_axis(kernel, name)
        if why:
            return why
    for loop, _ in loops_along(kernel, axis):
        within = inner_loop(loop, inner)
        if within is None:
            return f"not perfectly nested: the body of {axis} is more than a loop over {inner}"
        if not (is_serial(loop) and is_serial(within)):
            return f"axis {axis} or {inner} is bound: both must be serial"
    return ""


def stores_only(loop: Node) -> bool:
    """True if a loop carries only memory: no number passes to the next iteration."""
    return all(map(is_memory, starts_of(loop)))


def inner_loop(loop: Node, axis: str) -> Node | None:
    """Returns the loop over `axis` that is the whole body of `loop`; None if none is."""
    block = loop.blocks[0]
    result = block.results[0]
    inner = maker(result)
    if not is_loop(inner) or axis_of(inner) != axis or inner.attrs.get("limited"):
        return None
    if any(is_loop(node) and node is not inner for node in block.nodes):
        return None
    is_all = tuple(results_of(inner)) == block.results and tuple(inner.args) == block.params[1:]
    return inner if is_all else None


def is_serial(loop: Node) -> bool:
    """True if a loop is of kind serial and runs over its whole extent."""
    return loop.attrs["kind"] == "serial" and not loop.attrs.get("limited")


def bound_to(loop: Node) -> str:
    """The kind of a loop, in the words of step `bind`."""
    kind = str(loop.attrs["kind"])
    return "cores" if kind == "parallel" else kind


def branch(test: Node, starts: Sequence[Node], body: Block) -> Node:
    """Builds a loop of one iteration if a scalar condition is true, else of none."""
    index = body.params[0].dtype
    args = [constant(0, index), converted(test, index), *starts]
    return make("loop", args, {"kind": "branch", "limited": True}, (body,))


def along(name: str, extent: int, like: Node) -> Node:
    """Creates the variable of a loop over a new axis, of the same type as `like`."""
    return Node("var", (), {"name": name, "extent": extent}, like.type)


def held_like(variables: Sequence[Node], names: Names) -> list[Node]:
    """Creates new variables for carried values, with the types of `variables` and unused names."""
    hints = [re.sub(r"(_\d+)+$", "", str(v.attrs["name"])) for v in variables]
    own = [names.own(hint) for hint in hints]
    return [Node("var", (), {"name": n}, v.type) for n, v in zip(own, variables, strict=True)]


def is_constant(node: Node, value: float) -> bool:
    """True if a node is a constant of this value, or a broadcast of one."""
    if repeats(node):
        return is_constant(node.args[0], value)
    return is_number(node) and number(node) == value


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
    inside = [n.blocks[0].params for n in nodes if is_loop(n)]
    inner = {variable for variable, *_ in inside}
    varying = {*block.params, *(v for _, *carried in inside for v in carried)}
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
            if is_only and all(varying.isdisjoint(a.vars) for a in node.args[1:]):
                continue  # all iterations store the same value to the same element
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
