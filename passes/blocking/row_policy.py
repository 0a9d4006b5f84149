"""Schedules of loops and of reductions of rows or columns as kernels of blocks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

from stack.ir.axes import Index, parse_rule
from stack.ir.node import Node
from stack.ir.warp_ops import WARP
from stack.passes.blocking.reduce import ACROSS, MAX_WHOLE, ONCE, TWICE, ReductionLoop, in_a_row
from stack.passes.tiling.frame import CannotTile, power_of_two, static
from stack.schedule import Axis, Domain, Need, Policy, Prediction, Rules, Schedule, Split
from stack.target import Gpu

LOOP_TILE = 1024  # elements of a tile of elementwise work
ROW_TILE = 4096  # likewise, of rows that data picks: none is read before its index is there
TURNED = 64  # extent of a tile that is read along one axis and written along another
MAX_COLUMN = 16  # elements of an axis, reduced across the lines of memory, that a tile holds whole
COLUMNS = 128  # kept elements of a tile that walks along such an axis
LETTERS = "ijklmnopq"  # of axes that are kept
REDUCED = "r"  # all that are reduced, as one


@dataclass(frozen=True)
class RowSpace:
    """The loop space of a group.

    Attributes:
        root: the node whose axes span it.
        iter_vars: a symbol for each axis.
        places: where values sit.
        arrays: what is read and written.
        reduced: axes that are reduced.
        picks: reads at places that data gives.
    """

    root: Node
    iter_vars: Index
    places: Mapping[Node, Index]
    arrays: Sequence[Node]
    results: Sequence[Node]
    reduced: tuple[int, ...]
    picks: tuple[Node, ...]

    @property
    def shape(self) -> list[int]:
        """Extents of the axes."""
        return [static(d) for d in self.root.shape]

    @property
    def kept(self) -> list[int]:
        """Axes that are not reduced."""
        return [a for a in range(len(self.iter_vars)) if a not in self.reduced]

    @property
    def is_column(self) -> bool:
        """Whether it is reduced across the lines of memory."""
        return bool(self.reduced) and len(self.iter_vars) - 1 not in self.reduced

    @property
    def is_one(self) -> bool:
        """Whether what is reduced may be walked as one axis."""
        return len(self.reduced) == 1 or in_a_row(list(self.reduced))

    @property
    def reduction_loop(self) -> ReductionLoop:
        """How a program goes along a reduced axis that no tile holds."""
        if self.is_column or not self.reduced:
            return ACROSS
        own = [d for r in self.results for d in self.places[r]]
        return TWICE if self.iter_vars[self.reduced[0]] in own else ONCE

    def is_turned(self) -> bool:
        """Whether the last axis lies across the lines of an array."""
        line = self.iter_vars[self.kept[-1]] if self.kept else None
        held = [self.places[n] for n in self.arrays if n in self.places]
        return any(line in place[:-1] and place[-1] in self.iter_vars for place in held)

    def order(self) -> list[int]:
        """Which kept axes a tile should hold first: where memory is read and written along."""
        found = self.kept[-1:]
        for node in self.arrays:
            place = self.places.get(node)
            if place:
                for i, iter_var in enumerate(self.iter_vars):
                    if place[-1] == iter_var and i in self.kept and i not in found:
                        found.append(i)
        return [*found, *(a for a in reversed(self.kept) if a not in found)]


class RowPolicy(Policy):
    """Blocks of the kept axes i, j, ... and of what is reduced, r: whole in lanes, or in steps."""

    def __init__(self, space: RowSpace, gpu: Gpu) -> None:
        self.space, self.gpu = space, gpu
        shape = space.shape
        can_walk = space.is_one and (len(space.reduced) == 1 or space.is_column)
        if not (self._fits() or can_walk):
            raise CannotTile("several long axes are reduced at once")
        axes = [Axis(letter(a), shape[a], "parallel") for a in space.kept]
        if space.reduced:
            axes.append(Axis(REDUCED, prod(shape[a] for a in space.reduced), "reduction"))
        self.domain = Domain(tuple(axes))
        self.rules = Rules(
            {"parallel": ("grid",), "reduction": ("serial", "lane") if can_walk else ("lane",)},
            ordered=True,
        )

    def candidates(self) -> list[tuple[Schedule, Prediction | None]]:
        return [(self.complete(Schedule()), None)]

    def complete(self, given: Schedule) -> Schedule:
        usual = self._usual()
        made = given.filled(usual)
        if is_walked(made):
            reduction_loop = self.space.reduction_loop
            return replace(
                made,
                warps=made.warps or reduction_loop.warps,
                stages=made.stages or reduction_loop.ahead,
            )
        held = self._held(made)
        return replace(made, warps=made.warps or min(16, max(1, power_of_two(held // 512))))

    def why_illegal(self, schedule: Schedule) -> str:
        why = super().why_illegal(schedule)
        extent = self.domain.axis(REDUCED)
        if why or extent is None:
            return why
        if not is_walked(schedule) and schedule.block(REDUCED) != self._whole():
            return f"axis {REDUCED}: lanes hold {self._whole()} elements, all or none"
        if schedule.stages and not is_walked(schedule):
            return f"stages={schedule.stages}: nothing is walked in steps"
        return ""

    def needs(self, schedule: Schedule) -> Sequence[Need]:
        return [
            Need("threads", schedule.warps * WARP, self.gpu.threads),
            Need("registers for a tile", self._held(schedule), self.gpu.registers),
        ]

    def _whole(self) -> int:
        """Elements of a tile that holds what is reduced."""
        return prod(power_of_two(self.space.shape[a]) for a in self.space.reduced)

    def _fits(self) -> bool:
        most = MAX_COLUMN if self.space.is_column and self.space.is_one else MAX_WHOLE
        return self._whole() <= most

    def _held(self, schedule: Schedule) -> int:
        return prod(schedule.block(a.name, 1) for a in self.domain.axes)

    def _usual(self) -> Schedule:
        space, gpu = self.space, self.gpu
        shape, kept = space.shape, space.kept
        whole, fits = self._whole(), self._fits()
        room = max(1, LOOP_TILE // (whole if space.reduced and fits else 1))
        turned = not (space.reduced or space.picks) and space.is_turned()
        if not space.reduced and space.picks:
            # read element by element: waits are long
            room = ROW_TILE if all(map(_is_of_rows, space.picks)) else LOOP_TILE
            room = busy(room, prod(shape), 128, gpu)
        elif space.reduced and not fits:
            kept_size = prod(shape[a] for a in kept)
            room = busy(COLUMNS, kept_size, 32, gpu) if space.is_column else 1
        elif turned:
            room = busy(TURNED * TURNED, prod(shape), LOOP_TILE, gpu)
        blocks: dict[int, int] = {}
        for axis in space.order():
            cap = TURNED if turned else room
            blocks[axis] = min(power_of_two(shape[axis]), room, max(cap, 1))
            room //= blocks[axis]
        splits = [Split(letter(a), blocks[a], "grid") for a in kept]
        if space.reduced:
            held = prod(blocks.values())
            step = max(1, space.reduction_loop.block // held)
            splits.append(Split(REDUCED, whole, "lane") if fits else Split(REDUCED, step, "serial"))
        return Schedule(tuple(splits))


def letter(axis: int) -> str:
    """What an axis that is kept is called."""
    return LETTERS[axis] if axis < len(LETTERS) else f"i{axis}"


def is_walked(schedule: Schedule) -> bool:
    """Whether what is reduced is taken in steps."""
    return any(s.binding == "serial" for s in schedule.of(REDUCED))


def _is_of_rows(gather: Node) -> bool:
    """Whether what it reads for one index is a line of memory."""
    axes = parse_rule(gather.attrs["rule"]).inputs[0]
    return bool(axes) and not axes[-1].mark


def busy(block: int, elements: int, least: int, gpu: Gpu) -> int:
    """The extent of a tile that leaves enough programs for the machine."""
    while block > least and elements // block < 2 * gpu.processors:
        block //= 2
    return block
