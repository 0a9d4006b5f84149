"""The best fusings of the parts of a graph that is too large to search as a whole.

The kernels of the pass that is judged are in an order in which they can run. A part is a run of
them with few operations. Its fusings are searched exactly; groups across parts are not tried. So
the result is a fusing that exists, and the optimum may be better.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

from stack.explore.retrace import marked
from stack.ir.node import Node
from stack.ir.traits import is_group
from stack.measure.convex_cuts import ConvexCuts
from stack.measure.fusion_input import FusionInput
from stack.measure.fusion_space import TooManyFusings, fusion_space
from stack.measure.step_price import price
from stack.rewrite.log import Log
from stack.rewrite.pipeline import Pipeline
from stack.target import Target

PART_UNITS = 14  # a part has at most this number of operations, or one kernel
PART_GROUPS = 1000
PART_CUTS = 5000

Say = Callable[[str], None]


@dataclass(frozen=True)
class Part:
    """The kernels of a pass that are searched together.

    Attributes:
        kernels: how many the pass has here.
        units: number of operations.
        groups: the best groups, as nodes; those of the pass if the part is too large.
        legal: number of legal groups; 0 if the part is too large.
    """

    kernels: int
    units: int
    groups: Sequence[Sequence[Node]]
    legal: int


def best_parts(found: FusionInput, machine: Target, say: Say) -> list[Part]:
    """Returns the parts of a function, each with the best groups that it could have."""
    runs = [*_runs(found, PART_UNITS)]
    made: list[Part] = []
    for place, kernels in enumerate(runs, 1):
        say(f"searching: part {place} of {len(runs)}, {sum(map(len, kernels))} operations")
        made.append(_searched(found, kernels, machine))
    return made


def _searched(found: FusionInput, kernels: Sequence[Sequence[Node]], machine: Target) -> Part:
    grouping = found.fusion.grouping(found.prepared.body, Log(target=machine))
    place = {unit: i for i, unit in enumerate(grouping.units)}
    inside = sum(1 << place[unit] for unit in chain(*kernels))
    try:
        space = fusion_space(grouping, PART_GROUPS, inside)
        costs = {mask: price(step, machine) for mask, step in space.steps.items()}
        groups = ConvexCuts(space.reads, costs, PART_CUTS).best()[0].groups
    except TooManyFusings:
        return Part(len(kernels), inside.bit_count(), kernels, 0)
    chosen = [space.members(mask) for mask in sorted(groups)]
    return Part(len(kernels), inside.bit_count(), chosen, len(space.steps))


def _runs(found: FusionInput, most: int) -> Iterator[list[list[Node]]]:
    """Yields the pass's kernels, as their operations, in runs of at most `most` operations."""
    run: list[list[Node]] = []
    for kernel in _kernels(found):
        if run and sum(map(len, run)) + len(kernel) > most:
            yield run
            run = []
        run.append(kernel)
    if run:
        yield run


def _kernels(found: FusionInput) -> list[list[Node]]:
    """Returns the operations of each kernel of the pass, in an order in which kernels can run.

    An operation that several kernels compute counts in the first one.
    """
    grouping = found.fusion.grouping(found.prepared.body, Log(target=found.machine))
    func, _ = marked(found.prepared)
    fused = Pipeline([found.judged]).run(func, target=found.machine).func
    first: dict[str, int] = {}
    for place, step in enumerate(fused.nodes):
        locs = step.blocks[0].locs.values() if is_group(step) else [fused.body.locs.get(step, ())]
        for mark in chain(*locs):
            first.setdefault(mark, place)
    places: dict[Node, int] = {}
    for unit in grouping.units:  # one that the pass removed runs as soon as it can
        soonest = max((places.get(read, 0) for read in grouping.reads[unit]), default=0)
        places[unit] = first.get(f"%{grouping.block.names.get(unit)}", soonest)
    found_in: list[list[Node]] = [[] for _ in range(max(places.values(), default=0) + 1)]
    for unit, place in places.items():
        found_in[place].append(unit)
    return [kernel for kernel in found_in if kernel]
