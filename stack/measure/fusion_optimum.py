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
from stack.measure.fusion_space import FusionSpace, fusion_space
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
class Landscape:
    """All fusings of a function that a fusion pass could form.

    Attributes:
        units: number of operations that are fused, or run on their own.
        groups: number of legal groups.
        cuts: number of convex cuts.
        count: number of fusings.
        standings: the pass's own fusing, the best ones in order, and that which fuses nothing.
        recomputed: names of values that the pass's fusing computes in several kernels.
    """

    title: str
    machine: str
    units: int
    groups: int
    cuts: int
    count: int
    histogram: Histogram
    standings: Sequence[Standing]
    recomputed: Sequence[str]

    @property
    def size(self) -> str:
        """The number of fusings as text."""
        return f"{self.count:,}" if self.count < 1e12 else f"{self.count:.2e}"

    @property
    def ours(self) -> Standing:
        """The fusing that the pass chooses."""
        return self.standings[0]

    @property
    def best(self) -> Standing:
        """The fusing with the lowest predicted time."""
        return self.standings[1]


def landscape(found: FusionInput, best: int = BEST) -> Landscape:
    """Finds the best fusings of a function, and compares those of its pass with them.

    Raises UsageError if the pipeline is for no known machine, or if there are too many fusings.
    """
    machine = found.machine
    if machine is None:
        raise UsageError("the backend names no machine, which prices need: choose another one")
    grouping = found.fusion.grouping(found.prepared.body, Log(target=machine))
    space = fusion_space(grouping)
    cuts = ConvexCuts(space.reads, {m: price(step, machine) for m, step in space.steps.items()})
    standings = [_standing(f"pass {found.judged.name}", found.own, machine)]
    for place, fusing in enumerate(cuts.best(best), 1):
        groups = nodes_of(space, fusing)
        name = "best" if place == 1 else f"number {place}"
        made = _standing(name, found.fused(groups), machine, found.edit(groups))
        standings.append(made)
    standings.append(_standing("nothing fused", found.fused([]), machine, found.edit([])))
    return Landscape(
        f"@{found.func.name}",
        machine.name,
        len(space.units),
        len(space.steps),
        len(cuts.last),
        cuts.count(),
        cuts.histogram(),
        standings,
        recomputed(found, grouping),
    )


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


def described(found: Landscape) -> str:
    """Formats the landscape: its size, a picture, and the costs of some fusings."""
    head = (
        f"{found.title} for {found.machine}: {found.units} operations, {found.groups} legal groups,"
        f" {found.cuts} convex cuts, {found.size} legal fusings"
    )
    rows: list[list[object]] = []
    for each in found.standings:
        is_best = each.seconds <= found.best.seconds * (1 + 1e-9)
        share = 0.0 if is_best else found.histogram.cheaper(each.seconds)
        ratio = each.seconds / found.best.seconds
        rows.append(
            [each.name, each.kernels, number(each.seconds * 1e6), f"{ratio:.3f}x", percent(share)]
        )
    columns = ["fusing", "kernels", "predicted us", "of the best", "cheaper ones"]
    return "\n\n".join([filled(head), picture(found), table(columns, rows), *notes(found)])


def notes(found: Landscape) -> list[str]:
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
