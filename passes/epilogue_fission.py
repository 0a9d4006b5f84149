"""Second thoughts of fuse: hand the start of a row group to the dot before it.

A residual add that feeds a norm ends up in the norm's group, since the norm reads it. Its value is
written to memory all the same when the next residual needs it too; then the dot before it may as
well write it, and the norm reads one value instead of three. Where nothing is written, the dot may
still take what makes its result narrower: 16 bits between the kernels in place of 32.

What is read at a computed index goes to its dot as well: a pad before the next convolution would
repeat, under its mask, what the dot's tile does in registers.
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
    """Split groups where a dot can take a part of them: of rows, where fewer bytes are moved; at
    computed indices, where no more are."""
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
    """Values at a computed index that are read as often as they have elements, the last first."""
    found: list[Node] = []
    for out in reversed(group.members):
        is_whole = estimate(product(out.shape)) <= estimate(product(group.space))
        if flat(group.axes[out]) is None and is_whole:
            part = _prefix(grouping, group, out)
            if part and _saved(grouping, group, out, part) >= 0:
                found.append(out)
    return found


def _narrow(grouping: Grouping, group: Group) -> list[Node]:
    """Values that are worth passing in the place of a dot's result, by bytes saved."""
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
    """Bytes that are not written and read again, less those that both parts read then."""
    inputs = {s for n in part for s in grouping.reads[n] if s in group.inputs}
    rest = {s for n in group.members if n not in part for s in grouping.reads[n]}
    dots = sum(bytes_of(s) for s in inputs if is_contraction(s))
    return 2 * (dots - bytes_of(out)) - sum(bytes_of(s) for s in inputs & rest)


def _prefix(grouping: Grouping, group: Group, out: Node) -> list[Node]:
    """What computes one value before any reduction, if it reads a dot that nothing else reads."""
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
    if _is_taken(grouping, first) and grouping.log.spend("fission_epilogue", grouping.lines(part)):
        return True
    grouping.put(group, first, second)
    return False


def _is_taken(grouping: Grouping, part: Group) -> bool:
    """Whether a dot would have the part as its epilogue."""
    dots = [g for s in part.inputs for g in grouping.groups.get(s, ()) if g.dots]
    return any(isinstance(grouping.try_pair(g, part), Group) for g in dots)
