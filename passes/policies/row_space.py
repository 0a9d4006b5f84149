"""The loop space of elementwise groups and reductions: axes, reduction axes, index maps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property

from stack.ir.axes import Index
from stack.ir.node import Node
from stack.ir.traits import arrays_of, is_reduction, reads_by_data
from stack.passes.nest.emit import domain
from stack.passes.policies.reduction_loops import (
    ACROSS,
    ONCE,
    RAGGED,
    TWICE,
    ReductionLoop,
    is_aligned,
)
from stack.passes.positions.index_maps import index_maps_of
from stack.passes.tiling.frame import CannotTile, static


class RowSpace:
    """The loop space of a group. Raises CannotTile if its results do not share one.

    Attributes:
        root: the node whose axes span the space.
        iter_vars: a symbol for each axis.
        inputs: the arrays that the kernel reads.
        results: the arrays that the kernel writes.
        reduced: the reduction axes.
        kept: the parallel axes: those that are not reduced.
    """

    def __init__(self, group: Node) -> None:
        self._body = body = group.blocks[0]
        found = domain(body)
        if found is None:
            raise CannotTile("its outputs do not share one index space")
        self.root, self.iter_vars, self._index_maps = found
        axes = [n.attrs["axes"] for n in body.nodes if is_reduction(n) and n.args[0] is self.root]
        self.reduced = tuple(sorted({int(a) for own in axes for a in own}))
        self.kept = [a for a in range(len(self.iter_vars)) if a not in self.reduced]
        self.inputs = (*body.params, *arrays_of(body))
        self.results = body.results

    @cached_property
    def places(self) -> Mapping[Node, Index]:
        """The index of each value in terms of the symbols. For values that a concatenation joins,
        the index within their part of the space.
        """
        joined: dict[Node, Index] = {}
        for node in self._body.nodes:
            if self._index_maps.get(node) == self.iter_vars:
                for part in node.args:
                    if part not in self._index_maps and part.tensor.rank == len(self.iter_vars):
                        joined |= index_maps_of(self._body, part, self.iter_vars)
        return {**joined, **self._index_maps}

    @property
    def picks(self) -> Sequence[Node]:
        """The gathers: reads at indices that are data."""
        return [n for n in self._body.nodes if reads_by_data(n)]

    @property
    def arrays(self) -> Sequence[Node]:
        """The arrays that the kernel reads or writes."""
        return (*self.inputs, *self.results)

    @property
    def columns(self) -> Sequence[Node]:
        """The inputs that are contiguous along the last axis; not the indices of gathered rows."""
        last = self.iter_vars[-1]
        return [n for n in self.inputs if (self.places.get(n) or (last,))[-1] == last]

    @property
    def shape(self) -> list[int]:
        """The extents of the axes."""
        return [static(d) for d in self.root.shape]

    @property
    def is_column(self) -> bool:
        """True for a column reduction: the last axis, contiguous in memory, is not reduced."""
        return bool(self.reduced) and len(self.iter_vars) - 1 not in self.reduced

    @property
    def is_one(self) -> bool:
        """True if one loop can run over all reduction axes: there is only one, or they are adjacent
        and can be collapsed.
        """
        own = self.reduced
        return bool(own) and own == tuple(range(own[0], own[0] + len(own)))

    @property
    def reduction_loop(self) -> ReductionLoop:
        """Picks the block size, warps and prefetch depth of the serial loop over a reduction axis
        that is too long for a tile.
        """
        if self.is_column or not self.reduced:
            return ACROSS if all(map(is_aligned, self.inputs)) else RAGGED
        own = [d for r in self.results for d in self.places[r]]
        return TWICE if self.iter_vars[self.reduced[0]] in own else ONCE

    def is_turned(self) -> bool:
        """True if some array is transposed: strided along the last parallel axis."""
        line = self.iter_vars[self.kept[-1]] if self.kept else None
        held = [self.places[n] for n in self.arrays if n in self.places]
        return any(line in place[:-1] and place[-1] in self.iter_vars for place in held)

    def order(self) -> list[int]:
        """The numbers of the parallel axes in the order in which they get a share of a tile: first
        those along which arrays are contiguous.
        """
        found = self.kept[-1:]
        for node in self.arrays:
            place = self.places.get(node)
            if place:
                for i, iter_var in enumerate(self.iter_vars):
                    if place[-1] == iter_var and i in self.kept and i not in found:
                        found.append(i)
        return [*found, *(a for a in reversed(self.kept) if a not in found)]
