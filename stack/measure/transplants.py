"""Transplants: other compilers' fusion groups, imposed on our function and compiled by our backend.

A peer's own output names the nodes of our function that each of its kernels computes: Inductor's
origins of scheduler nodes, metadata in XLA's optimized HLO, calls in TVM's fused functions. Our
passes carry marks of these nodes to our fusion pass, which forms the same groups as far as its
rules allow. So the times of a peer's groups in our code, and in its own, differ by code alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from stack.explore.retrace import Origin
from stack.ir.func import Func
from stack.ir.node import Node
from stack.ir.ops import lookup
from stack.measure.fusion_input import FusionInput, fusion_input
from stack.measure.groups import line_of
from stack.rewrite.given_groups import GivenGroups, group_text
from stack.rewrite.log import Log
from stack.run.backend import Kernel
from stack.run.pipeline_edits import Stages
from stack.target import Target


@dataclass(frozen=True)
class SplitGroup:
    """A peer's group that is not legal for us: its kernel's name, ops, source lines and reasons."""

    kernel: str
    ops: tuple[str, ...]
    source: tuple[str, ...]
    pieces: int
    reasons: tuple[str, ...]

    def __str__(self) -> str:
        lines = ", ".join(dict.fromkeys(map(line_of, self.source)))
        head = f"{self.kernel} ({', '.join(self.ops)}; {lines})"
        return f"{head}: {self.pieces} groups, since {'; '.join(self.reasons)}"


@dataclass(frozen=True)
class Transplant:
    """The groups of a peer as changes to our pipeline.

    Attributes:
        edit: the changes as text, such as `-fuse,+fuse{groups=["%mul %add"]}@fused`.
        groups: number of the peer's kernels that compute more than views of our function.
        split: those that are not legal.
        inside: number of its kernels that compute nodes of loop bodies, whose groups stay ours.
    """

    edit: str
    groups: int
    split: tuple[SplitGroup, ...] = ()
    inside: int = 0


def transplant(
    kernels: Sequence[Kernel],
    func: Func,
    origins: Mapping[str, Origin],
    stages: Stages,
    machine: Target | None,
) -> Transplant:
    """Imposes the groups of a peer's kernels on the fusion pass of some stages.

    `func` is the marked function that the peer compiled, see `retrace.marked`; `stage_node` of each
    kernel names its nodes.
    """
    found = fusion_input(func, stages, machine)
    named = [[f"%{name}" for name in k.stage_node.split()] for k in kernels]
    held = [[mark for mark in marks if mark in origins] for marks in named]
    groups = _units(found, origins, held)
    kept = [i for i, nodes in enumerate(groups) if nodes]
    block = found.prepared.body
    given = GivenGroups(block, [group_text(block, groups[i]) for i in kept])
    grouping = found.fusion.grouping(block, Log(target=machine))
    given.form(grouping)
    split: list[SplitGroup] = []
    for number, i in enumerate(kept):
        reasons = tuple(given.reasons(grouping, number))
        if len(groups[i]) > 1 and reasons:
            lines = [line for mark in held[i] for line in origins[mark].source]
            pieces = len(given.pieces(grouping, number))
            split.append(SplitGroup(kernels[i].name, kernels[i].ops, tuple(lines), pieces, reasons))
    inside = sum(len(a) < len(b) for a, b in zip(held, named, strict=True))
    edit = found.edit([groups[i] for i in kept])
    return Transplant(edit, len(kept), tuple(split), inside)


def _units(
    found: FusionInput, origins: Mapping[str, Origin], held: Sequence[Sequence[str]]
) -> list[list[Node]]:
    """Returns the units of each of a peer's groups, given by the marks of its nodes.

    A unit that passes merged from several imported nodes is in the groups of the last of them that
    is no view. Two kernels of equal units are one group: the second one is left empty.
    """
    block = found.prepared.body
    grouping = found.fusion.grouping(block, Log(target=found.machine))
    order = {mark: place for place, mark in enumerate(origins)}
    groups: list[list[Node]] = [[] for _ in held]
    for unit in grouping.units:
        marks = sorted((m for m in block.locs.get(unit, ()) if m in order), key=order.__getitem__)
        computed = [m for m in marks if lookup(origins[m].op).kind != "movement"]
        for mark in (computed or marks)[-1:]:
            for number, names in enumerate(held):
                if mark in names:
                    groups[number].append(unit)
    seen: set[tuple[Node, ...]] = set()
    for number, nodes in enumerate(groups):
        if tuple(nodes) in seen:
            groups[number] = []
        seen.add(tuple(nodes))
    return groups
