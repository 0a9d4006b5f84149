"""Lowering for a CPU: the policy or tiler for each kind of group."""

from __future__ import annotations

from stack.ir.node import Node
from stack.ir.traits import contractions, is_stream, mixes
from stack.passes.cpu_products.gemm import check_worth, gemm_policy, is_row_of_sums
from stack.passes.policies.cpu_products import CpuProducts
from stack.passes.policies.cpu_rows import CpuRows
from stack.passes.policies.cpu_streams import CpuStreams
from stack.passes.policies.row_streams import CpuRowStreams
from stack.passes.policies.scans import CpuScans
from stack.passes.policies.step_lowering import (
    Shown,
    StepLowering,
    UserSteps,
    check_list,
    shown,
    written,
)
from stack.passes.policies.stream_panels import PanelPolicy
from stack.passes.steps.primitives import Step, parse_steps
from stack.passes.tiling.contraction import as_reduction
from stack.schedule import Policy
from stack.target import Cpu, Target, as_cpu


def lowering_of(group: Node, cpu: Cpu) -> StepLowering[Cpu]:
    """Returns the object that lowers a fusion group or a stream to a CPU kernel. Raises CannotTile
    if the group has no such kernel.
    """
    if written(group):
        return UserSteps(group, cpu)
    if is_stream(group):
        has_products = bool(contractions(group.blocks[0].nodes))
        return CpuStreams(group, cpu) if has_products else CpuRowStreams(group, cpu)
    body = group.blocks[0]
    dots = contractions(body.nodes)
    if dots:
        is_sum = len(dots) == 1 and is_row_of_sums(dots[0])
        return CpuRows(as_reduction(group, dots[0]), cpu) if is_sum else CpuProducts(group, cpu)
    is_serial = len(body.results) == 1 and mixes(body.results[0])
    return CpuScans(group, cpu) if is_serial else CpuRows(group, cpu)


def tile_group(group: Node, target: Target | None = None) -> Node:
    """Lowers a fusion group or a stream to its CPU kernel. Raises CannotTile if it has none."""
    return lowering_of(group, as_cpu(target)).kernel()


def cpu_policy(group: Node, cpu: Cpu) -> Policy | None:
    """Returns the policy that schedules a group; None if there is nothing to choose.

    Streams are tiled in panels, matrix products in tiles of accumulators in vector registers.

    Raises:
        CannotTile: the group has no kernel.
    """
    if is_stream(group):
        return PanelPolicy(group, cpu) if contractions(group.blocks[0].nodes) else None
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
    """Returns the plain loop nest of a group, and the CPU kernel after each loop transformation of
    its schedule; see `stepped.shown`.
    """
    cpu = as_cpu(target)
    return shown(node, lambda group: lowering_of(group, cpu))
