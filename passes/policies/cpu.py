"""Lowering for a CPU: the policy or tiler for each kind of group."""

from __future__ import annotations

from stack.ir.node import Node
from stack.ir.traits import contractions, is_generated, is_stream, mixes, writes_by_data
from stack.passes.exact_tiling.gemm import check_worth, is_row_of_sums, tile_gemm
from stack.passes.exact_tiling.gemm_policy import gemm_policy
from stack.passes.exact_tiling.stream import StreamTiler
from stack.passes.exact_tiling.stream_policy import PanelPolicy
from stack.passes.policies.cpu_rows import CpuRows
from stack.passes.policies.cpu_scans import CpuScans
from stack.passes.policies.stepped import (
    NEST,
    WHOLE,
    ByHand,
    Shown,
    Stepped,
    check_list,
    plain_nest,
    written,
)
from stack.passes.steps.all import IllegalStep, Step, parse_steps
from stack.passes.tiling.bare import alone, is_bare
from stack.passes.tiling.contraction import as_reduction
from stack.passes.tiling.frame import CannotTile
from stack.schedule import Policy, Schedule
from stack.target import Cpu, Target, as_cpu


def tile_group(group: Node, target: Target | None = None) -> Node:
    """Returns the CPU kernel of a fusion group or a stream. Raises CannotTile."""
    cpu = as_cpu(target)
    made = stepped(group, cpu)
    if made is not None:
        return made.kernel()
    if is_stream(group):
        return StreamTiler(group, target=target).kernel()
    policy = gemm_policy(group, cpu)
    schedule = policy.of(group) if policy is not None else Schedule()
    return tile_gemm(group, schedule.block("n"), schedule.block("m"), target)


def stepped(group: Node, cpu: Cpu) -> Stepped[Cpu] | None:
    """Returns the lowering of a group by steps.

    None for streams, and for matrix products other than reductions along contiguous rows.
    """
    if written(group):
        return ByHand(group, cpu)
    if is_stream(group):
        return None
    body = group.blocks[0]
    dots = contractions(body.nodes)
    if dots:
        is_sum = len(dots) == 1 and is_row_of_sums(dots[0])
        return CpuRows(as_reduction(group, dots[0]), cpu) if is_sum else None
    is_serial = len(body.results) == 1 and mixes(body.results[0])
    return CpuScans(group, cpu) if is_serial else CpuRows(group, cpu)


def cpu_policy(group: Node, cpu: Cpu) -> Policy | None:
    """Returns the policy that schedules a group; None if there is nothing to choose.

    Streams are tiled in panels, matrix products in tiles of accumulators in vector registers.

    Raises:
        CannotTile: the group has no kernel.
    """
    if is_stream(group):
        return PanelPolicy(group, cpu)
    policy = gemm_policy(group, cpu)
    if policy is not None:
        check_worth(policy.dot, cpu)
    return policy


def taken_cpu_steps(group: Node, text: str, cpu: Cpu) -> list[Step]:
    """Parses a list of steps, and checks that they are legal for the nest of a group.

    Raises:
        UsageError: the text cannot be read, a step is not legal, or the group has no loop nest.
    """
    steps = parse_steps(text)
    check_list(group, steps, cpu)
    return steps


def shown_cpu_steps(node: Node, target: Target) -> Shown:
    """The plain loop nest of a group, and the kernel after each step of its schedule.

    Returns:
        For each kernel the text of the step, the reason of the policy and the kernel. Groups that
        are not lowered step by step have the nest and the kernel only. The list is empty for a node
        without a generated kernel, such as a library call.
    """
    if not (is_bare(node) or is_generated(node) or is_stream(node)) or writes_by_data(node):
        return []
    group = alone(node) if is_bare(node) else node
    cpu = as_cpu(target)
    try:
        made = stepped(group, cpu)
        if made is not None:
            return made.shown()
        return [(NEST, "", plain_nest(group, cpu)), (WHOLE, "", tile_group(group, cpu))]
    except (CannotTile, IllegalStep):
        return []
