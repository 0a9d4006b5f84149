"""Blocks of memory, and the `dot` of two blocks: what loops of a matrix product read and compute.

    sum over k of p0[8 i.0 + i.1, k] * p1[k, j]        %a = load(%p0, mul(%i.0, 8), 0) : f32<8x64>
    for i.1 < 8, vectors over j, k < 64                %b = load(%p1, 0, 0) : f32<64x32>
                                                       dot(%a, %b) {rule="m k, k n -> m n"}

An index that adds a row or a column to a tap, as convolutions have, reads the block through windows
(`unfold`).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import NamedTuple

from stack.ir.builder import make
from stack.ir.forms import converted
from stack.ir.node import Node
from stack.ir.types import DType
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
class Operand:
    """An operand of a matmul in loops: a memory, and which elements are read along each of its
    axes.
    """

    memory: Node
    axes: tuple[ReadAxis, ...]

    @property
    def over(self) -> set[Node]:
        """The loop variables and lanes that select the elements which are read."""
        return {v for axis in self.axes for v in axis.over}


@dataclass(frozen=True)
class BlockDot:
    """A matmul of two blocks of memory, found in loops, which one `dot` node can compute.

    Attributes:
        operands: what is multiplied.
        row: the variable over rows; None for one row.
        lane: the lanes of vectors: the columns.
        depth: the variables of the reduction, outermost first.
        sizes: the extent of each variable.
        dtype: the type of the sums.
    """

    operands: tuple[Operand, Operand]
    row: Node | None
    lane: Node
    depth: tuple[Node, ...]
    sizes: dict[Node, int]
    dtype: DType

    @property
    def types(self) -> tuple[str, str]:
        """The element types that the two operands have in memory."""
        first, second = self.operands
        return first.memory.dtype.name, second.memory.dtype.name

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the sums: rows, unless there is one, and columns."""
        return tuple(self.sizes[v] for v in (self.row, self.lane) if v is not None)

    @property
    def tile(self) -> tuple[int, int, int]:
        """Rows, columns, and the extent of the last reduction axis of the operand with the rows."""
        first, second = self.operands
        is_left = self.row in first.over if self.row is not None else self.lane not in first.over
        axes = (first if is_left else second).axes
        deepest = [v for axis in axes for v in axis.over if v in self.depth][-1]
        rows = 1 if self.row is None else self.sizes[self.row]
        return rows, self.sizes[self.lane], self.sizes[deepest]

    def built(self, is_narrow: bool) -> Node:
        """Builds the `dot` node and the loads of its operands.

        Args:
            is_narrow: whether an instruction multiplies operands as they are in memory. If not,
                they are converted to the type of the sums.
        """
        names = {v: f"k{i or ''}" for i, v in enumerate(self.depth)}
        names |= {v: name for v, name in ((self.row, "m"), (self.lane, "n")) if v is not None}
        blocks: list[Node] = []
        sides: list[str] = []
        for operand, unit in zip(self.operands, "ab", strict=True):
            block, over = self.loaded(operand)
            blocks.append(block if is_narrow else converted(block, self.dtype))
            own = [names[v] if v is not None else f"{unit}{i}" for i, v in enumerate(over)]
            sides.append(" ".join(own))
        result = " ".join(names[v] for v in (self.row, self.lane) if v is not None)
        attrs = {"rule": f"{', '.join(sides)} -> {result}"}
        return make("dot", blocks, attrs, hint=tile_type(self.dtype, self.shape))

    def loaded(self, operand: Operand) -> tuple[Node, list[Node | None]]:
        """Builds the load of an operand, and the loop variable of each of its axes."""
        axes = operand.axes
        windows = [i for i, axis in enumerate(axes) if not axis.is_contiguous]
        first = min([*windows, *(i for i, axis in enumerate(axes) if axis.over)])
        hint = tile_type(operand.memory.dtype, [self._span(axis) for axis in axes[first:]])
        block = make("load", (operand.memory, *(axis.start for axis in axes)), hint=hint)
        places = [axis.place for axis in axes[first:]]
        if not windows:
            return block, places
        begin, end = windows[0] - first, windows[-1] + 1 - first
        found = axes[windows[0] : windows[-1] + 1]
        attrs = {
            "axis": begin,
            "window": tuple(self._size(axis.tap) for axis in found),
            "stride": tuple(axis.stride for axis in found),
            "dilation": tuple(axis.dilation for axis in found),
        }
        over = [*places[:end], *(axis.tap for axis in found), *places[end:]]
        return make("unfold", (block,), attrs), over

    def _size(self, var: Node | None) -> int:
        return 1 if var is None else self.sizes[var]

    def _span(self, axis: ReadAxis) -> int:
        """Returns how many elements of memory all windows along an axis cover together."""
        taps = (self._size(axis.tap) - 1) * axis.dilation
        return (self._size(axis.place) - 1) * axis.stride + taps + 1


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
