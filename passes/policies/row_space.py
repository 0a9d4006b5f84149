"""The loop space of elementwise groups and reductions: axes, reduction axes, index maps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from stack.ir.axes import Index
from stack.ir.node import Block, Node
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


@dataclass(frozen=True)
class RowSpace:
    """The loop space of a group.

    Attributes:
        root: the node whose axes span the space.
        iter_vars: a symbol for each axis.
        places: the index of each value in terms of the symbols. For values that a concatenation
            joins, the index within their part of the space.
        inputs: the arrays that the kernel reads.
        results: the arrays that the kernel writes.
        reduced: the reduction axes.
        picks: the gathers: reads at indices that are data.
    """

    root: Node
    iter_vars: Index
    places: Mapping[Node, Index]
    inputs: Sequence[Node]
    results: Sequence[Node]
    reduced: tuple[int, ...]
    picks: tuple[Node, ...]

    @staticmethod
    def of(group: Node) -> RowSpace:
        """Returns the loop space of a group. Raises CannotTile if its results do not share one loop
        space.
        """
        body = group.blocks[0]
        found = domain(body)
        if found is None:
            raise CannotTile("its outputs do not share one index space")
        root, iter_vars, places = found
        axes = [n.attrs["axes"] for n in body.nodes if is_reduction(n) and n.args[0] is root]
        reduced = sorted({int(a) for own in axes for a in own})
        inputs = (*body.params, *arrays_of(body))
        picks = tuple(n for n in body.nodes if reads_by_data(n))
        places = {**_joined(body, places, iter_vars), **places}
        return RowSpace(root, iter_vars, places, inputs, body.results, tuple(reduced), picks)

    @property
    def arrays(self) -> Sequence[Node]:
        """The arrays that the kernel reads or writes."""
        return (*self.inputs, *self.results)

    @property
    def shape(self) -> list[int]:
        """The extents of the axes."""
        return [static(d) for d in self.root.shape]

    @property
    def kept(self) -> list[int]:
        """The parallel axes: those that are not reduced."""
        return [a for a in range(len(self.iter_vars)) if a not in self.reduced]

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


def _joined(body: Block, places: Mapping[Node, Index], iter_vars: Index) -> dict[Node, Index]:
    """Returns the index of values that concatenations join, in the order of their axes."""
    found: dict[Node, Index] = {}
    for node in body.nodes:
        if places.get(node) == iter_vars:
            for part in node.args:
                if part not in places and part.tensor.rank == len(iter_vars):
                    found |= index_maps_of(body, part, iter_vars)
    return found
