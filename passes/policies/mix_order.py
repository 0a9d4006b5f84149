"""Column reductions fused with row-wise work on a GPU, as in the gradients of a norm.

A program loops over rows of memory, a tile of some rows at a time. It stores the results of these
rows, and accumulates the column reductions. If there is also a reduction along rows, a tile has
whole rows; otherwise each program has a block of the columns.

    gradients of the rows, gain and bias of a norm, 4096 rows of 768:
    split r_1 1024; vectorize r_1.1; split r 8; vectorize r.1; compute_with r.0; rfactor r.0;
    pipeline r.0 3; launch 16
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod

from stack.ir.axes import Index
from stack.ir.dim import bounds
from stack.ir.node import Block, Node
from stack.ir.traits import is_contraction, is_reduction
from stack.passes.nest.emit import axis_names, domain, emit
from stack.passes.nest.scope import names_in
from stack.passes.policies.gpu_steps import (
    arithmetic,
    evictions,
    programs,
    serial_loop,
    tiles,
)
from stack.passes.policies.reduction_loops import are_mates, warps_of, whole_column_run
from stack.passes.policies.step_lowering import StepLowering, check_powers
from stack.passes.steps.loops import axes
from stack.passes.steps.primitives import Launch, LoweredKernel
from stack.passes.tiling.frame import CannotTile, power_of_two, static
from stack.target import Gpu


class MixOrderLowering(StepLowering[Gpu]):
    """Lowers a group with column reductions and row-wise work."""

    @cached_property
    def nest(self) -> Node:
        """The plain loop nest of the group. Raises CannotTile if the group is no column reduction
        fused with row-wise work.
        """
        check_powers(self.group)
        return emit(self.group, root=self.space.root, reduced=self.space.reduced)

    @cached_property
    def space(self) -> MixOrderSpace:
        """The axes of the group with their roles. Raises CannotTile if it is no column reduction
        fused with row-wise work.
        """
        space = space_of(self.group.blocks[0], self.target)
        if space is None:
            raise CannotTile("it has no reduction of columns with other results of the same rows")
        return space

    def take(self, made: LoweredKernel) -> None:
        space, extents = self.space, axes(made.kernel)
        names = axis_names(space.root, space.reduced)
        line, rows, warps = self._tile()
        walked, last = names[space.streamed], names[-1]
        own = {last: line, **({walked: rows} if rows > 1 else {})}
        others = {n: 1 for n in names if n not in ("", walked, last)}
        steps = programs(extents, others) + tiles({n: own[n] for n in names if n in own}, extents)
        count = -(-extents[walked] // rows) if walked else 1
        if count > 1:
            axis, ahead = f"{walked}.0" if rows > 1 else walked, self.target.mixes.prefetch
            shared, sums = space.is_shared, rows > 1
            steps += serial_loop(axis, count, is_shared=shared, has_sums=sums, ahead=ahead)
        results = self.group.blocks[0].results
        steps += programs(extents, {last: line})
        steps += arithmetic(results) + evictions(results, self.target)
        made.take(*steps, Launch(warps))

    def _tile(self) -> tuple[int, int, int]:
        """Picks the tile of a program: the elements of a row, the rows, and the warps."""
        space, gpu = self.space, self.target
        extent, whole = space.shape[space.streamed], power_of_two(space.shape[-1])
        run = 0
        if not space.is_along and extent <= gpu.rows.column_in_tile:
            run = whole_column_run(power_of_two(extent), self.group.blocks[0].params, gpu)
        line = max(2, whole if space.is_along else min(whole, max(gpu.rows.columns, run)))
        room = gpu.mixes.whole_tile if space.is_along else gpu.mixes.part_tile
        # a tile of partial sums of the same size for each column reduction
        room = min(room, gpu.tile_registers // (len(space.across) + 2))
        rows = min(power_of_two(extent), power_of_two(room // line + 1) // 2 or 1)
        if run and rows >= extent:
            return line, rows, max(1, line // run)
        return line, rows, warps_of(rows * line, gpu, least=4)


@dataclass(frozen=True)
class MixOrderSpace:
    """The loop space of a group with column reductions and row-wise work.

    One loop over the axis `streamed` may serve several of the plain nest: those of column
    reductions that do not depend on each other, or of results of the full shape.
    """

    root: Node  # its axes span the space
    across: tuple[Node, ...]  # the column reductions; each reads the whole space
    shape: tuple[int, ...]  # the extent of each axis, outermost first; the last is along rows
    streamed: int  # the axis over which a program loops: the reduction axis of `across`
    is_along: bool  # whether there is also a reduction along rows
    programs: int  # of the kernel
    is_shared: bool  # whether one loop serves several

    @property
    def reduced(self) -> tuple[int, ...]:
        """The numbers of the reduction axes: `streamed`, and the last axis if a reduction runs
        along rows.
        """
        return (self.streamed, *((len(self.shape) - 1,) if self.is_along else ()))


def space_of(body: Block, gpu: Gpu) -> MixOrderSpace | None:
    """Returns the loop space of a group with a column reduction; None if there is none.

    The group must also have a reduction along rows, a result of the full shape, or another column
    reduction. If a reduction runs along rows, whole rows must fit in registers.
    """
    reduces = [n for n in body.nodes if is_reduction(n) and n.attrs["axes"]]
    wide_ones = [n for n in reduces if n.args[0].tensor.rank - 1 not in n.attrs["axes"]]
    if not wide_ones or any(map(is_contraction, body.nodes)):
        return None
    for root in dict.fromkeys(n.args[0] for n in wide_ones):
        found = _space(body, reduces, root, gpu)
        if found is not None:
            return found
    return None


def _space(body: Block, reduces: Sequence[Node], root: Node, gpu: Gpu) -> MixOrderSpace | None:
    """Returns the loop space over the axes of node `root`; None if the group's reductions and
    results do not fit in it.
    """
    wide_ones = [n for n in reduces if n.args[0].tensor.rank - 1 not in n.attrs["axes"]]
    axes = next(n.attrs["axes"] for n in wide_ones if n.args[0] is root)
    found = domain(body, root) if len(axes) == 1 and static(root.shape[-1]) > 1 else None
    if found is None:
        return None
    _, iter_vars, index_maps = found
    streamed = int(axes[0])
    across = [
        n for n in wide_ones if _runs_across(n, index_maps.get(n.args[0]), iter_vars, streamed)
    ]
    along = [n for n in reduces if n not in across]
    for node in along:
        place = index_maps.get(node.args[0])
        if place is None or [place[int(a)] for a in node.attrs["axes"]] != [iter_vars[-1]]:
            return None
    held = [*body.results, *(n.args[0] for n in reduces)]
    if any(static(n.tensor.size) != _reached(index_maps[n], iter_vars) for n in held):
        return None  # only a part of it is used, as by a slice
    full = [r for r in body.results if {str(m) for m in iter_vars} <= names_in(index_maps[r])]
    if not along and not full and len(across) < 2:
        return None
    # the partial sums of whole rows, and tiles of two arrays
    registers = power_of_two(static(root.shape[-1])) * (len(across) + 2)
    if along and registers > gpu.tile_registers:
        return None
    programs = prod(static(s) for i, s in enumerate(root.shape[:-1]) if i != streamed)
    if not along:
        programs *= -(-static(root.shape[-1]) // gpu.rows.columns)
    shape = tuple(static(s) for s in root.shape)
    is_shared = bool(full) or are_mates(across)
    return MixOrderSpace(root, tuple(across), shape, streamed, bool(along), programs, is_shared)


def _reached(place: Index, iter_vars: Index) -> int:
    """Returns how many elements an index addresses: the product of the extents of the iteration
    variables that it uses."""
    named = names_in(place)
    return prod(bounds(m)[1] + 1 for m in iter_vars if str(m) in named)


def _runs_across(node: Node, place: Index | None, iter_vars: Index, streamed: int) -> bool:
    """True if a reduction is a column reduction over the axis `streamed` only."""
    if place is None or place[-1] != iter_vars[-1] or len(node.attrs["axes"]) != 1:
        return False
    axis = int(node.attrs["axes"][0])
    others = [d for i, d in enumerate(place) if i != axis]
    return place[axis] == iter_vars[streamed] and str(iter_vars[streamed]) not in names_in(others)
