"""How the axes of a loop space index values, and what ops do to that.

A value has an entry for each of its dims: a tuple of axis ids of the space, major first (one as a
rule, several where a reshape merged axes, none for a dim of size 1), or None where the index is
computed (slice, concat, pad, gather, or two readers at different places). Axis rules of the ops
say how entries pass from a value to its operands; that is all that fusion knows about ops.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from stack.ir import ops
from stack.ir.axes import Rule, reshape_rule
from stack.ir.dim import Dim
from stack.ir.node import Node

Entry = tuple[int, ...] | None
Entries = tuple[Entry, ...]

_ids = itertools.count()


def fresh_axis() -> int:
    """An axis id that no space has yet."""
    return next(_ids)


def flat(entries: Entries) -> tuple[int, ...] | None:
    """All axis ids of a value in order, or None where an index is computed."""
    out: list[int] = []
    for entry in entries:
        if entry is None:
            return None
        out.extend(entry)
    return tuple(out)


def meet(a: Entries, b: Entries) -> Entries:
    """Entries of a value that is read at both."""
    return tuple(x if x == y else None for x, y in zip(a, b))


def operand_entries(node: Node, entries: Entries, sizes: Mapping[int, Dim]) -> list[Entries]:
    """How a node that is computed at `entries` indexes each of its operands."""
    kind = ops.lookup(node.op).kind
    if kind == "elementwise":
        return [entries if a.shape else () for a in node.args]
    if node.op == "broadcast":
        axes: Sequence[int] = node.attrs["axes"]
        found = [entries[a] for a in axes]
        return [tuple(() if s == 1 else e for e, s in zip(found, node.args[0].shape))]
    if node.op == "transpose":
        perm: Sequence[int] = node.attrs["perm"]
        back: list[Entry] = [None] * len(perm)
        for i, p in enumerate(perm):
            back[p] = entries[i]
        return [tuple(back)]
    if node.op == "reshape":
        return [_reshape_entries(node, entries, sizes)]
    if node.op in ("slice", "reverse", "pad"):
        own = tuple(
            e if _untouched(node, axis) else _unit(s)
            for axis, (e, s) in enumerate(zip(entries, node.args[0].shape))
        )
        return [own, *(() for _ in node.args[1:])]
    if node.op == "concat":
        at = node.attrs["axis"]
        return [
            tuple(
                _unit(s) if axis == at else e for axis, (e, s) in enumerate(zip(entries, a.shape))
            )
            for a in node.args
        ]
    rule = ops.rule_of(node)
    if node.op == "gather" and rule is not None:
        return _by_name(rule, node, entries)
    return [tuple(_unit(s) for s in a.shape) for a in node.args]


def _unit(size: Dim) -> Entry:
    return () if size == 1 else None


def _untouched(node: Node, axis: int) -> bool:
    if node.op == "reverse":
        return axis not in node.attrs["axes"]
    if node.op == "slice":
        start, limit, step = (node.attrs[k][axis] for k in ("start", "limit", "step"))
        return bool(start == 0 and step == 1 and limit == node.args[0].shape[axis])
    return all(node.attrs[k][axis] == 0 for k in ("low", "high", "interior"))


def _by_name(rule: Rule, node: Node, entries: Entries) -> list[Entries]:
    place = {a.names[0]: e for a, e in zip(rule.outputs[0], entries)}
    found: list[Entries] = []
    for operand, arg in zip(rule.inputs, node.args):
        found.append(
            tuple(
                _unit(s) if a.mark == "!" or len(a.names) != 1 else place.get(a.names[0])
                for a, s in zip(operand, arg.shape)
            )
        )
    return found


class SplitNeeded(Exception):
    """A reshape makes one axis of the space out of several: the space needs them apart."""

    def __init__(self, axis: int, sizes: tuple[Dim, ...]) -> None:
        super().__init__(axis)
        self.axis = axis
        self.sizes = sizes


def _reshape_entries(node: Node, entries: Entries, sizes: Mapping[int, Dim]) -> Entries:
    """Axes that a reshape keeps, splits or merges; all computed where it does neither.

    Raises SplitNeeded where a merged axis is one axis of the space so far.
    """
    source = node.args[0].shape
    rule = reshape_rule(source, node.shape)
    length: dict[str, Dim] = {
        a.names[0]: s for a, s in zip(rule.inputs[0], source) if len(a.names) == 1
    }
    place: dict[str, Entry] = {}
    for axis, entry in zip(rule.outputs[0], entries):
        if len(axis.names) == 1:
            place[axis.names[0]] = entry
            continue
        if entry is None or not axis.names:
            continue
        parts = tuple(length[n] for n in axis.names)
        real = [n for n in axis.names if length[n] != 1]
        if len(entry) == 1 and len(real) > 1:
            raise SplitNeeded(entry[0], tuple(s for s in parts if s != 1))
        if [sizes[i] for i in entry] == [length[n] for n in real]:
            place.update({n: () for n in axis.names})
            place.update({n: (i,) for n, i in zip(real, entry)})
    out: list[Entry] = []
    for axis, size in zip(rule.inputs[0], source):
        parts_of = [place.get(n) for n in axis.names]
        if any(p is None for p in parts_of):
            out.append(_unit(size))
        else:
            out.append(tuple(i for p in parts_of if p is not None for i in p))
    return tuple(out)


@dataclass
class Space:
    """A loop space while it is refined."""

    order: list[int]
    sizes: dict[int, Dim]
    axes: dict[Node, Entries]
    reduced: set[int]

    def split(self, axis: int, sizes: Sequence[Dim]) -> tuple[int, ...]:
        """Replace an axis by several, major first."""
        new = tuple(fresh_axis() for _ in sizes)
        at = self.order.index(axis)
        self.order[at : at + 1] = new
        self.sizes.update(zip(new, sizes))
        if axis in self.reduced:
            self.reduced.remove(axis)
            self.reduced.update(new)
        for node, entries in self.axes.items():
            if any(e is not None and axis in e for e in entries):
                self.axes[node] = tuple(put(e, axis, new) for e in entries)
        return new


def put(entry: Entry, axis: int, new: tuple[int, ...]) -> Entry:
    """An entry with an axis replaced by several."""
    if entry is None or axis not in entry:
        return entry
    return tuple(x for i in entry for x in (new if i == axis else (i,)))
