"""Which builder gives the kernel of a group on a CPU, and which policy schedules it."""

from __future__ import annotations

from stack.ir.node import Node
from stack.ir.traits import contractions, is_generated, is_stream, mixes, writes_by_data
from stack.passes.exact_tiling.gemm import check_worth, tile_gemm
from stack.passes.exact_tiling.gemm_policy import gemm_policy
from stack.passes.exact_tiling.repeated import tile_rows
from stack.passes.exact_tiling.serial import SerialTiler
from stack.passes.exact_tiling.short_rows import ShortRowsTiler
from stack.passes.exact_tiling.stream import StreamTiler
from stack.passes.exact_tiling.stream_policy import PanelPolicy
from stack.passes.policies.stepped import (
    NEST,
    WHOLE,
    ByHand,
    Shown,
    check_list,
    nest_of,
    written,
)
from stack.passes.steps.all import IllegalStep, Step, parse_steps
from stack.passes.tiling.bare import alone, is_bare
from stack.passes.tiling.frame import CannotTile
from stack.schedule import Policy, Schedule
from stack.target import Cpu, Target, as_cpu


def tile_group(group: Node, target: Target | None = None) -> Node:
    """The kernel node of one fusion group or stream, for a CPU. Raises CannotTile."""
    cpu = as_cpu(target)
    if written(group):
        return ByHand(group, cpu).kernel()
    if is_stream(group):
        return StreamTiler(group, target=target).kernel()
    body = group.blocks[0]
    if contractions(body.nodes):
        policy = gemm_policy(group, cpu)
        schedule = policy.of(group) if policy is not None else Schedule()
        return tile_gemm(group, schedule.block("n"), schedule.block("m"), target)
    if len(body.results) == 1 and mixes(body.results[0]):
        return SerialTiler(group).kernel()
    short = ShortRowsTiler(group)
    return short.kernel() if short.fits(cpu) else tile_rows(group, cpu)


def line_policy(group: Node, cpu: Cpu) -> Policy | None:
    """The policy of a group: streams go by panels, products by tiles that vector registers hold.
    None where there is nothing to choose.

    Raises:
        CannotTile: no kernel of its own computes it.
    """
    if is_stream(group):
        return PanelPolicy(group, cpu)
    policy = gemm_policy(group, cpu)
    if policy is not None:
        check_worth(policy.dot, cpu)
    return policy


def taken_lines(group: Node, text: str, cpu: Cpu) -> list[Step]:
    """The steps of a text, all of them legal for the nest of a group.

    Raises:
        UsageError: the text cannot be read, a step is not legal, or the group has no loop nest.
    """
    steps = parse_steps(text)
    check_list(group, steps, cpu)
    return steps


def shown_lines(node: Node, target: Target) -> Shown:
    """The plain loop nest of a group, and the kernel after each step of its schedule.

    Each with what the step says, and the reason. A kernel that nobody wrote steps for is made
    whole: the nest, and the kernel. Nothing for a node that has no kernel of its own, such as one
    that a library computes.
    """
    if not (is_bare(node) or is_generated(node) or is_stream(node)) or writes_by_data(node):
        return []
    group = alone(node) if is_bare(node) else node
    cpu = as_cpu(target)
    try:
        if written(group):
            return ByHand(group, cpu).shown()
        return [(NEST, "", nest_of(group, cpu)), (WHOLE, "", tile_group(group, cpu))]
    except (CannotTile, IllegalStep):
        return []
