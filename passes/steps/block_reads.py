"""Blocks of memory that loops read: one element in each iteration, all elements together.

    p0[8 i.0 + i.1, k]  for i.1 < 8, k < 64        load(%p0, mul(%i.0, 8), 0) : f32<8x64>

An index that adds a row or a column to a tap, as convolutions have, reads the block through windows
(`unfold`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from stack.ir.builder import make
from stack.ir.node import Node
from stack.passes.steps.access import tile_type
from stack.passes.steps.affine import AffineIndex, place_of


class ReadAxis(NamedTuple):
    """The elements read along one axis of memory. Contiguous elements count as windows of one tap.

    Attributes:
        start: the index of the first element.
        over: the variables over which further elements are read: those of places and taps.
        place: the variable over windows: rows or columns; None for one window.
        tap: the variable in a window; None for one element.
        stride: elements from one window to the next.
        dilation: elements from one tap to the next.
        is_contiguous: whether all elements are one run of memory.
    """

    start: Node
    over: tuple[Node, ...]
    place: Node | None
    tap: Node | None = None
    stride: int = 1
    dilation: int = 1
    is_contiguous: bool = True


@dataclass(frozen=True)
class BlockRead:
    """A block that loops read from a memory: which elements along each of its axes."""

    memory: Node
    axes: tuple[ReadAxis, ...]

    @property
    def over(self) -> set[Node]:
        """The loop variables and lanes that select the elements which are read."""
        return {v for axis in self.axes for v in axis.over}

    def loaded(self, sizes: Mapping[Node, int]) -> tuple[Node, list[Node | None]]:
        """Builds the load of the block, and the variable of each of its axes; None for an axis of
        one element. `sizes`: the extent of each variable.
        """

        def size(var: Node | None) -> int:
            return 1 if var is None else sizes[var]

        def span(axis: ReadAxis) -> int:
            """Returns how many elements all windows along an axis cover together."""
            taps = (size(axis.tap) - 1) * axis.dilation
            return (size(axis.place) - 1) * axis.stride + taps + 1

        axes = self.axes
        windows = [i for i, axis in enumerate(axes) if not axis.is_contiguous]
        first = min([*windows, *(i for i, axis in enumerate(axes) if axis.over)])
        hint = tile_type(self.memory.dtype, [span(axis) for axis in axes[first:]])
        block = make("load", (self.memory, *(axis.start for axis in axes)), hint=hint)
        places = [axis.place for axis in axes[first:]]
        if not windows:
            return block, places
        begin, end = windows[0] - first, windows[-1] + 1 - first
        found = axes[windows[0] : windows[-1] + 1]
        attrs = {
            "axis": begin,
            "window": tuple(size(axis.tap) for axis in found),
            "stride": tuple(axis.stride for axis in found),
            "dilation": tuple(axis.dilation for axis in found),
        }
        over = [*places[:end], *(axis.tap for axis in found), *places[end:]]
        return make("unfold", (block,), attrs), over


def axis_along(
    index: Node, variables: Collection[Node], depth: Collection[Node] = ()
) -> ReadAxis | None:
    """Returns which elements of one axis of memory an index reads over all values of the variables;
    None if they are neither contiguous nor windows.

    Args:
        index: the index: affine in the variables.
        variables: the variables.
        depth: those of the reduction: they go over the taps of windows.
    """
    found = place_of(index)
    if found is None:
        return None
    factors = {v: c for v, c in found.terms.items() if v in variables}
    rest = AffineIndex({v: c for v, c in found.terms.items() if v not in variables}, found.more)
    if any(not node.vars.isdisjoint(variables) for node in rest.terms):
        return None
    taps = [v for v in factors if v in depth]
    places = [v for v in factors if v not in depth]
    if len(taps) > 1 or len(places) > 1 or any(c < 1 for c in factors.values()):
        return None
    start, over = rest.node(index.dtype), tuple(factors)
    around = [*rest.terms.values()]  # the steps of loops outside
    is_contiguous = list(factors.values()) in ([], [1])
    if is_contiguous and not any(step < int(t.attrs["extent"]) for t in taps for step in around):
        return ReadAxis(start, over, next(iter(over), None))  # windows do not overlap
    place, tap = next(iter(places), None), next(iter(taps), None)
    # of one window, the stride is that of a loop outside
    stride = factors[place] if place is not None else around[0] if len(around) == 1 else 1
    dilation = factors[tap] if tap is not None else 1
    return ReadAxis(start, over, place, tap, max(stride, 1), dilation, is_contiguous=False)
