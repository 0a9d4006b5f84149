"""Index entries: how the axes of a loop space index values.

A value has one entry for each of its dims. An entry is a tuple of axis ids of the space, major
first: usually one, several if a reshape merged axes, none for a dim of size 1. It is None if the
index is computed (slice, concat, pad, gather, or two readers at different indices). Axis rules of
the ops map entries of a value to entries of its operands; fusion knows nothing else about ops.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from stack.ir import ops
from stack.ir.axes import Axis, Rule
from stack.ir.dim import Dim
from stack.ir.node import Node
from stack.ir.traits import is_elementwise

Entry = tuple[int, ...] | None
Entries = tuple[Entry, ...]

_ids = itertools.count()


def fresh_axis() -> int:
    """Returns a new axis id."""
    return next(_ids)


def flat(entries: Entries) -> tuple[int, ...] | None:
    """Concatenates the loop axes (ids) by which all dims of a value are indexed. Returns None if a
    dim has a computed index, which no loop axes give.
    """
    out: list[int] = []
    for entry in entries:
        if entry is None:
            return None
        out.extend(entry)
    return tuple(out)


def meet(a: Entries, b: Entries) -> Entries:
    """Merges the loop axes by which two readers index each dim of the same value. A dim at which
    they differ becomes None: no single index serves both readers.
    """
    return tuple(x if x == y else None for x, y in zip(a, b))


class SplitNeeded(Exception):
    """A reshape merges axes into one axis of the space, so the space must split that axis."""

    def __init__(self, axis: int, sizes: tuple[Dim, ...]) -> None:
        super().__init__(axis)
        self.axis = axis
        self.sizes = sizes


def operand_entries(node: Node, entries: Entries, sizes: Mapping[int, Dim]) -> list[Entries]:
    """Returns, for each operand of a node, the loop axes that index its dims, if `entries` are
    those of the node's dims. Follows the node's axis rule.

    Raises SplitNeeded if a reshape merges axes into one axis of the space.
    """
    shapes = [a.shape for a in node.args]
    if is_elementwise(node):  # a dim of an operand is that of the result
        return [tuple(() if s == 1 else e for e, s in zip(entries, shape)) for shape in shapes]
    rule = ops.rule_of(node)
    if rule is None or not _tells(node, rule):
        return [tuple(_unit(s) for s in shape) for shape in shapes]
    length = {
        a.names[0]: s
        for operand, shape in zip((*rule.inputs, *rule.outputs), (*shapes, node.shape))
        for a, s in zip(operand, shape)
        if len(a.names) == 1 and not a.mark
    }
    place: dict[str, Entry] = {}
    for axis, entry in zip(rule.outputs[0], entries):
        place.update(_parts(axis, entry, length, sizes))
    return [
        tuple(_joined(axis, size, place) for axis, size in zip(operand, shape))
        for operand, shape in zip(rule.inputs, shapes)
    ]


def _tells(node: Node, rule: Rule) -> bool:
    """True if the index of a result element determines which operand elements are read: for
    movement, except scatters.
    """
    op = ops.lookup(node.op)
    is_scattered = not op.is_view and any(a.mark for a in rule.outputs[0])
    return op.kind == "movement" and not is_scattered


def _unit(size: Dim) -> Entry:
    return () if size == 1 else None


def _parts(
    axis: Axis, entry: Entry, length: Mapping[str, Dim], sizes: Mapping[int, Dim]
) -> dict[str, Entry]:
    """Splits the entry of a result's dim into the entries of the axes that compose the dim. Omits
    axes whose entry is unknown. Raises SplitNeeded if one axis of the space covers several of them.
    """
    if len(axis.names) == 1:
        return {axis.names[0]: entry}
    if entry is None:
        return {}
    real = [n for n in axis.names if length[n] != 1]
    if len(entry) == 1 and len(real) > 1:
        raise SplitNeeded(entry[0], tuple(length[n] for n in real))
    if [sizes[i] for i in entry] != [length[n] for n in real]:
        return {}
    return {**dict.fromkeys(axis.names, ()), **{n: (i,) for n, i in zip(real, entry)}}


def _joined(axis: Axis, size: Dim, place: Mapping[str, Entry]) -> Entry:
    """Returns the loop axes that index an operand's dim, from those of the axes that the dim
    merges. None if one of them is unknown, or if the dim is read through a window or as a whole.
    """
    parts = [None if axis.mark else place.get(n) for n in axis.names]
    if size == 1 or any(p is None for p in parts):
        return _unit(size)
    return tuple(i for p in parts if p is not None for i in p)


@dataclass
class Space:
    """The loop axes of a group that is being formed, and for each value the axes that index its
    dims. An axis is split if a reshape inside the group needs it.
    """

    order: list[int]
    sizes: dict[int, Dim]
    axes: dict[Node, Entries]
    reduced: set[int]

    def split(self, axis: int, sizes: Sequence[Dim]) -> tuple[int, ...]:
        """Replaces a loop axis by several new ones of these sizes, the major one first, also in the
        indices of all values. Returns the new axes.
        """
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
    """Returns the loop axes that index a dim (an entry), with `axis` replaced by the axes `new`
    into which it was split. None stays None.
    """
    if entry is None or axis not in entry:
        return entry
    return tuple(x for i in entry for x in (new if i == axis else (i,)))
