"""Checks that a schedule fits its domain and target, before a kernel is built.

A `Domain` describes what the loops of a kernel allow; `Need` is its use of a machine resource. Each
reason names the axis or the resource, the rule, and the number.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stack.schedule.record import Axis, AxisSplit, Domain, Schedule


@dataclass(frozen=True)
class Need:
    """The amount of a GPU or CPU resource, such as registers, that a kernel uses per program, and
    the amount that a program may use.
    """

    resource: str
    amount: int
    most: int

    def __str__(self) -> str:
        return f"{self.amount} {self.resource}, and a program has {self.most}"


def why_illegal(schedule: Schedule, domain: Domain, needs: Sequence[Need] = ()) -> str:
    """Returns the reason why a schedule is illegal for a kernel with the axes `domain`; "" if it is
    legal.

    `needs`: the resources that the kernel uses.
    """
    if schedule.instead:
        if schedule.instead in domain.words:
            return ""
        known = ", ".join(domain.words) or "none"
        return f"{schedule.instead!r} cannot replace this kernel; possible: {known}"
    for name in dict.fromkeys(s.axis for s in schedule.splits):
        axis = domain.axis(name)
        if axis is None:
            return f"no axis {name!r}; its domain has {domain}; only lists of steps name loops"
        why = _why_not_split(axis, schedule.of(name), domain.tails)
        if why:
            return f"axis {name}: {why}"
    grid = [s.axis for s in schedule.splits if s.binding == "grid"]
    usual = [a.name for a in domain.axes if a.name in grid]
    if domain.ordered and grid != usual:
        return f"programs along {', '.join(grid)}; the order of this kernel is {', '.join(usual)}"
    if schedule.warps & (schedule.warps - 1):
        return f"warps={schedule.warps} is no power of two"
    for option in ("warps", "stages", "persistent"):
        if getattr(schedule, option) and option not in domain.options:
            return f"{option}: this kernel has no such choice"
    over = next((n for n in needs if n.amount > n.most), None)
    return f"it takes {over}" if over else ""


def _why_not_split(axis: Axis, splits: Sequence[AxisSplit], tails: bool) -> str:
    allowed, outer = axis.bindings, 0
    for split in splits:
        shown = str(split).partition("=")[2]
        if split.block < 1:
            return f"a block of {split.block} elements"
        if axis.kind != "parallel" and split.binding == "grid" and "grid" not in allowed:
            whole = axis.whole or (
                f"a group has all {axis.extent} elements: on GPUs, pass split_reductions makes"
                " parts before groups are formed"
            )
            return f"{shown} would divide it among programs, and {whole}"
        if split.binding not in allowed:
            known = ", ".join(allowed) or "nothing"
            way_out = "" if allowed else f": leave out {axis.name}"
            return f"{shown}: a {axis.kind} axis of this kernel is bound to {known}{way_out}"
        for block in filter(None, (split.block, split.tail)):
            why = _why_no_block(axis, block, 1 if outer else axis.unit)
            if why:
                return why
        if split.tail and split.binding != "grid":
            return f"{shown}: only blocks of programs have a tail"
        if split.tail and not tails:
            return f"{shown}: all programs of this target have blocks of one size, {split.block}"
        if outer and (split.block > outer or outer % split.block):
            return f"a block of {split.block} does not divide the one around it, {outer}"
        outer = split.block
    bound = [s.binding for s in splits]
    if bound != sorted(bound, key=allowed.index) or len(set(bound)) < len(bound):
        return f"bound to {', '.join(bound)}; the order is {', '.join(allowed)}"
    return ""


def _why_no_block(axis: Axis, block: int, unit: int) -> str:
    if not axis.is_free and block & (block - 1):
        return f"a block of {block} is no power of two"
    if block < unit:
        return f"a block of {block}, the least is {unit}"
    if axis.is_free and block % unit:
        return f"a block of {block} is no multiple of {unit}"
    return f"a block of {block}, the most is {axis.most}" if 0 < axis.most < block else ""
