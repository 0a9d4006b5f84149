"""Loops of a kernel: find them by axis, and check conditions that primitives share."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from stack.ir.builder import results_of
from stack.ir.equivalence import once_in
from stack.ir.memory import starts_of
from stack.ir.node import Block, Node
from stack.ir.traits import is_item, is_loop, is_memory, is_number, number, repeats
from stack.passes.tiling.loops import Names
from stack.passes.tiling.loops import extent_of as extent_of


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
            inner = result.args[0] if is_item(result) else result
            loop = inner_loop(loop, axis_of(inner)) if is_loop(inner) else None
        found += [chain] if chain else []
    return found


def why_no_axis(kernel: Node, axis: str) -> str:
    """Returns why a step cannot name an axis: there is no loop over it; "" if there is one."""
    known = axes(kernel)
    if axis in known:
        return ""
    named = ", ".join(f"{name} of {extent}" for name, extent in known.items()) or "none"
    return f"there is no loop over {axis!r}; the axes are: {named}"


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
    inner = result.args[0] if is_item(result) else result
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
