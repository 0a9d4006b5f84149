"""Move the start of a row group into the epilogue of the dot before it.

A residual add that feeds a norm ends up in the norm's group, since the norm reads it. If the next
residual needs its value too, it is written to memory anyway. Then the dot before it may write it,
and the norm reads one value instead of three. Even if nothing is written, the dot may take ops that
make its result narrower: 16 bits between the kernels instead of 32.

A value that is read at a computed index moves to its dot as well. A pad before the next convolution
would otherwise repeat, under its mask, ops that the dot can do in registers.
"""

from __future__ import annotations

from stack.ir import ops
from stack.ir.dim import product
from stack.ir.node import Node
from stack.ir.traits import is_contraction
from stack.rewrite.entries import flat
from stack.rewrite.fusion import Grouping
from stack.rewrite.group import Group, bytes_of, estimate


def fission_epilogues(grouping: Grouping) -> None:
    """Splits groups if a dot can take a part of them.

    For groups of rows, the split must move fewer bytes. For values read at computed indices, it
    must not move more.
    """
    grouping.ask(grouping.all_rules)
    for group in grouping.all_groups:
        if group.kind == "reduction":
            outs = (*reversed(group.outputs), *_narrow(grouping, group))
        else:
            outs = _moved(grouping, group)
        for out in outs:
            part = _prefix(grouping, group, out)
            if part and _split(grouping, group, part):
                break


def _moved(grouping: Grouping, group: Group) -> list[Node]:
    """Returns values that the group reads at computed indices, and that the dot before the group
    can compute; last first. Such a value has at most as many elements as the space of the group,
    and the move costs no bytes."""
    found: list[Node] = []
    for out in reversed(group.members):
        is_whole = estimate(product(out.shape)) <= estimate(product(group.space))
        if flat(group.axes[out]) is None and is_whole:
            part = _prefix(grouping, group, out)
            if part and _saved(grouping, group, out, part) >= 0:
                found.append(out)
    return found


def _narrow(grouping: Grouping, group: Group) -> list[Node]:
    """Returns values inside the group that take fewer bytes to pass between kernels than the dot's
    result, the one that saves most first."""
    found: dict[Node, int] = {}
    for out in group.members:
        if out in group.outputs:
            continue
        part = _prefix(grouping, group, out)
        if part:
            found[out] = _saved(grouping, group, out, part)
    ahead = [out for out, saved in found.items() if saved > 0]
    return sorted(ahead, key=lambda out: -found[out])


def _saved(grouping: Grouping, group: Group, out: Node, part: list[Node]) -> int:
    """Returns the bytes of memory traffic that moving `part`, which computes `out`, to the dot
    saves. The dot's result is no longer written and read, but `out` is. Inputs that `part` and the
    rest of the group both read are read twice."""
    inputs = {s for n in part for s in grouping.reads[n] if s in group.inputs}
    rest = {s for n in group.members if n not in part for s in grouping.reads[n]}
    dots = sum(bytes_of(s) for s in inputs if is_contraction(s))
    return 2 * (dots - bytes_of(out)) - sum(bytes_of(s) for s in inputs & rest)


def _prefix(grouping: Grouping, group: Group, out: Node) -> list[Node]:
    """Returns the nodes that compute a value before reductions, if they alone read a dot."""
    if out in group.after_reduction or flat(group.axes[out]) not in (group.order, None):
        return []
    part: dict[Node, None] = {out: None}
    pending = [out]
    while pending:
        for node in group.reach(pending.pop()):
            if node not in part:
                part[node] = None
                pending.append(node)
    if len(part) == len(group.members):
        return []
    if any(ops.lookup(n.op).kind != "elementwise" for n in part):
        return []
    for node in part:
        readers = grouping.readers.get(node, [])
        if node is not out and (node in grouping.needed or any(r not in part for r in readers)):
            return []
    for dot in (s for n in part for s in grouping.reads[n] if is_contraction(s)):
        if all(r in part for r in grouping.readers[dot]) and dot not in grouping.needed:
            return list(part)
    return []


def _split(grouping: Grouping, group: Group, part: list[Node]) -> bool:
    rest = [n for n in group.members if n not in part]
    if any(len(grouping.groups[n]) != 1 for n in group.members):
        return False
    grouping.drop(group)
    first = grouping.regroup(part)
    second = grouping.regroup(rest)
    if not isinstance(first, Group) or not isinstance(second, Group):
        grouping.put(group)
        return False
    grouping.put(first)
    grouping.put(second)
    lines = grouping.block.lines_of(part)
    if _is_taken(grouping, first) and grouping.log.spend("fission_epilogue", lines):
        return True
    grouping.put(group, first, second)
    return False


def _is_taken(grouping: Grouping, part: Group) -> bool:
    """True if fusion accepts `part` as the epilogue of the group of a dot that it reads."""
    dots = [g for s in part.inputs for g in grouping.groups.get(s, ()) if g.dots]
    return any(isinstance(grouping.try_pair(g, part), Group) for g in dots)
