"""The landscape of fusings: all that a fusion pass could do, and how good its choice is.

Costs are predictions (`step_price`). The best fusing is exact for them: no legal one is cheaper,
except with values that several kernels recompute.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

from stack.errors import UsageError
from stack.explore.retrace import marked
from stack.explore.table import number, table
from stack.explore.terminal import filled
from stack.ir.func import Func
from stack.ir.node import Node
from stack.ir.traits import is_group
from stack.measure.convex_cuts import ConvexCuts, Fusing, Histogram
from stack.measure.fusion_input import FusionInput
from stack.measure.fusion_parts import PART_UNITS, Part, Say, best_parts
from stack.measure.fusion_space import FusionSpace, TooManyFusings, fusion_space
from stack.measure.step_price import kernels_in, price, total_price
from stack.rewrite.fusion import Grouping
from stack.rewrite.log import Log
from stack.rewrite.pipeline import Pipeline
from stack.target import Target

BEST = 3
ROWS = 12  # of the picture
WIDTH = 40  # of its longest bar


@dataclass(frozen=True)
class Standing:
    """One fusing in the landscape: number of its kernels, and predicted seconds.

    `edit` are changes to the pipeline that form its groups; "" for a pass's own choice.
    """

    name: str
    kernels: int
    seconds: float
    edit: str = ""


@dataclass(frozen=True)
class Compared:
    """Fusings of a function that a fusion pass could form, beside its own.

    Attributes:
        units: number of operations that are fused, or run on their own.
        standings: the pass's own fusing, the best ones in order, and that which fuses nothing.
        recomputed: names of values that the pass's fusing computes in several kernels.
    """

    title: str
    machine: str
    units: int
    standings: Sequence[Standing]
    recomputed: Sequence[str]

    @property
    def ours(self) -> Standing:
        """The fusing that the pass chooses."""
        return self.standings[0]

    @property
    def best(self) -> Standing:
        """The fusing with the lowest predicted time."""
        return self.standings[1]


@dataclass(frozen=True)
class Landscape(Compared):
    """All fusings of a function that a fusion pass could form.

    Attributes:
        groups: number of legal groups.
        cuts: number of convex cuts.
        count: number of fusings.
    """

    groups: int
    cuts: int
    count: int
    histogram: Histogram

    @property
    def size(self) -> str:
        """The number of fusings as text."""
        return f"{self.count:,}" if self.count < 1e12 else f"{self.count:.2e}"


@dataclass(frozen=True)
class InParts(Compared):
    """The best fusing inside each part of a function that is too large to search as a whole.

    Attributes:
        why: what there is too much of.
    """

    parts: Sequence[Part]
    why: str


def landscape(
    found: FusionInput, best: int = BEST, say: Say = lambda _: None
) -> Landscape | InParts:
    """Finds the best fusings of a function, and compares those of its pass with them.

    Raises UsageError if the pipeline is for no known machine.
    """
    machine = found.machine
    if machine is None:
        raise UsageError("the backend names no machine, which prices need: choose another one")
    try:
        return _whole(found, machine, best, say)
    except TooManyFusings as error:
        say(f"{error}: searching its parts")
        return _in_parts(found, machine, str(error), say)


def _whole(found: FusionInput, machine: Target, best: int, say: Say) -> Landscape:
    grouping = found.fusion.grouping(found.prepared.body, Log(target=machine))
    space = fusion_space(grouping, say=say)
    say(f"searching: fusings of {len(space.steps):,} legal groups")
    cuts = ConvexCuts(space.reads, {m: price(step, machine) for m, step in space.steps.items()})
    count = cuts.count()
    chosen = [nodes_of(space, fusing) for fusing in cuts.best(best)]
    return Landscape(
        *_compared(found, machine, chosen, "best"),
        len(space.steps),
        len(cuts.last),
        count,
        cuts.histogram(),
    )


def _in_parts(found: FusionInput, machine: Target, why: str, say: Say) -> InParts:
    parts = best_parts(found, machine, say)
    chosen = [nodes for part in parts for nodes in part.groups]
    return InParts(*_compared(found, machine, [chosen], "best in parts"), parts, why)


def _compared(
    found: FusionInput, machine: Target, fusings: Sequence[Sequence[Sequence[Node]]], best: str
) -> tuple[str, str, int, list[Standing], list[str]]:
    """Returns the fields of `Compared`, for the best fusings in order; `best` names the first."""
    grouping = found.fusion.grouping(found.prepared.body, Log(target=machine))
    standings = [_standing(f"pass {found.judged.name}", found.own, machine)]
    for place, groups in enumerate(fusings, 1):
        name = best if place == 1 else f"number {place}"
        standings.append(_standing(name, found.fused(groups), machine, found.edit(groups)))
    standings.append(_standing("nothing fused", found.fused([]), machine, found.edit([])))
    title, again = f"@{found.func.name}", recomputed(found, grouping)
    return title, machine.name, len(grouping.units), standings, again


def nodes_of(space: FusionSpace, fusing: Fusing) -> list[list[Node]]:
    """Returns the nodes of each group of a fusing, in program order."""
    return [space.members(mask) for mask in sorted(fusing.groups)]


def _standing(name: str, fused: Func, machine: Target, edit: str = "") -> Standing:
    return Standing(name, kernels_in(fused, machine), total_price(fused, machine), edit)


def recomputed(found: FusionInput, grouping: Grouping) -> list[str]:
    """Returns the names of values that the pass computes in several kernels."""
    func, _ = marked(found.prepared)
    fused = Pipeline([found.judged]).run(func, target=found.machine).func
    groups = (step.blocks[0] for step in fused.nodes if is_group(step))
    counts = Counter(mark for body in groups for mark in set(chain(*body.locs.values())))
    kept = [grouping.block.names.get(n) for n in grouping.units if n not in grouping.cheap]
    return [f"%{name}" for name in kept if counts[f"%{name}"] > 1]


def described(found: Landscape | InParts) -> str:
    """Formats the size of a search, and the costs of some fusings; of a landscape, a picture."""
    head = f"{found.title} for {found.machine}: {found.units} operations, "
    columns = ["fusing", "kernels", "predicted us", "of the best"]
    rows: list[list[object]] = [
        [s.name, s.kernels, number(s.seconds * 1e6), f"{s.seconds / found.best.seconds:.3f}x"]
        for s in found.standings
    ]
    if isinstance(found, InParts):
        return "\n\n".join([filled(head + _parts(found)), table(columns, rows), *notes(found)])
    head += f"{found.groups} legal groups, {found.cuts} convex cuts, {found.size} legal fusings"
    for row, each in zip(rows, found.standings, strict=True):
        is_best = each.seconds <= found.best.seconds * (1 + 1e-9)
        row.append(percent(0.0 if is_best else found.histogram.cheaper(each.seconds)))
    made = table([*columns, "cheaper ones"], rows)
    return "\n\n".join([filled(head), picture(found), made, *notes(found)])


def _parts(found: InParts) -> str:
    """Says which parts were searched, and which were too large."""
    large = [part for part in found.parts if not part.legal]
    groups = sum(part.legal for part in found.parts)
    text = (
        f"searched in {len(found.parts)} parts of at most {PART_UNITS} operations or one kernel,"
        f" {groups} legal groups, since {found.why}. Groups across parts are not tried, so a better"
        " fusing may exist; for an exact search choose a smaller function, such as one layer"
    )
    if large:
        sizes = ", ".join(str(part.units) for part in large)
        text += f". Parts that are too large stay as they are: {sizes} operations"
    return text


def notes(found: Compared) -> list[str]:
    """Says what the predictions are, and what the search leaves out."""
    lines = [
        "predicted: the launch of each kernel, plus its arithmetic or its memory traffic, whichever"
        f" takes longer, at the rates of `stackc targets {found.machine}`; a matmul of a library"
        " counts like a kernel",
    ]
    if found.recomputed:
        lines.append(
            f"the pass computes {', '.join(found.recomputed)} in several kernels, which the search"
            " does not try; so it may be better than the best"
        )
    return [filled("\n".join(lines))]


def percent(share: float) -> str:
    """Formats a share; small ones by their magnitude."""
    if share <= 0:
        return "none"
    return f"{100 * share:.3g} %" if share >= 1e-4 else f"1 in {1 / share:.1g}"


def picture(found: Landscape, rows: int = ROWS) -> str:
    """Draws the number of fusings by predicted cost; bars are logarithmic."""
    low, high = found.best.seconds, max(s.seconds for s in found.standings)
    step = (high - low) / rows or low

    def row_of(seconds: float) -> int:
        return min(max(round((seconds - low) / step), 0), rows)

    bars = [0.0] * (rows + 1)
    for cost, count in zip(found.histogram.costs, found.histogram.counts, strict=True):
        bars[row_of(float(cost))] += float(count)
    most = math.log10(max(bars) + 1)
    lines = ["predicted cost relative to the best, and the number of fusings (logarithmic bars)"]
    for row, count in enumerate(bars):
        here = [s.name for s in found.standings if row_of(s.seconds) == row]
        if count or here:
            bar = "#" * round(WIDTH * math.log10(count + 1) / most)
            marks = f"  <- {', '.join(here)}" if here else ""
            lines.append(f"  {(low + row * step) / low:6.3f}x  {_count(count):>8}  {bar}{marks}")
    return "\n".join(lines)


def _count(value: float) -> str:
    return f"{value:.0f}" if value < 1e4 else f"{value:.1e}"
