"""The lowering of each kind of group on a CPU and on a GPU, and its scheduling policy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from stack.errors import UsageError
from stack.ir.node import Node
from stack.ir.traits import (
    contractions,
    is_generated,
    is_running,
    is_stream,
    mixes,
    writes_by_data,
)
from stack.passes.cpu_products.gemm import is_row_of_sums
from stack.passes.gpu_products.tile_choice import is_given_to_library
from stack.passes.policies.cpu_products import CpuProducts, strided_columns
from stack.passes.policies.cpu_rows import CpuRows
from stack.passes.policies.cpu_streams import CpuStreams
from stack.passes.policies.gpu_streams import ProductStreams
from stack.passes.policies.mix_order import MixOrderLowering, space_of
from stack.passes.policies.products import Products
from stack.passes.policies.row_streams import CpuRowStreams, RowStreams
from stack.passes.policies.rows import RowLowering
from stack.passes.policies.scans import CpuScans, GpuScans
from stack.passes.policies.step_lowering import StepLowering
from stack.passes.steps.loops import axes
from stack.passes.steps.primitives import Launch, Shown, Step, parse_steps, run_steps
from stack.passes.tiling.contraction import as_reduction
from stack.passes.tiling.frame import CannotTile
from stack.passes.tiling.single_ops import group_of
from stack.schedule import Policy, Schedule
from stack.target import Cpu, Gpu, Target

Kind = tuple[Callable[[Node, Any], bool], Callable[[Node, Any], StepLowering[Any]]]


def has_products(group: Node) -> bool:
    """True if a fusion group, or an iteration of a stream, computes matrix products."""
    return bool(contractions(group.blocks[0].nodes))


def _sums(group: Node, cpu: Cpu) -> CpuRows:
    return CpuRows(as_reduction(group, *contractions(group.blocks[0].nodes)), cpu)


# the kinds of groups: the first one whose test is true builds the kernel
ON_CPU: Sequence[Kind] = (
    (lambda group, _: is_stream(group) and has_products(group), CpuStreams),
    (lambda group, _: is_stream(group), CpuRowStreams),
    # one matmul, or one result, of that kind
    (lambda group, _: [*map(is_row_of_sums, contractions(group.blocks[0].nodes))] == [True], _sums),
    (lambda group, _: has_products(group), CpuProducts),
    (lambda group, _: [*map(mixes, group.blocks[0].results)] == [True], CpuScans),
    (lambda _, __: True, CpuRows),
)
ON_GPU: Sequence[Kind] = (
    (lambda group, _: is_stream(group) and has_products(group), ProductStreams),
    (lambda group, _: is_stream(group), RowStreams),
    (lambda group, _: any(map(is_running, group.blocks[0].nodes)), GpuScans),
    (lambda group, gpu: space_of(group.blocks[0], gpu) is not None, MixOrderLowering),
    (lambda group, _: has_products(group), Products),
    (lambda _, __: True, RowLowering),
)


def lowering_of(group: Node, target: Target) -> StepLowering[Any]:
    """Returns the object that lowers a fusion group or a stream to a kernel. Raises CannotTile if
    the group has no kernel.
    """
    kinds = ON_CPU if isinstance(target, Cpu) else ON_GPU
    return next(made for takes, made in kinds if takes(group, target))(group, target)


def policy_of(group: Node, target: Target, has_threads: bool = False) -> Policy | None:
    """Returns the policy that schedules a fusion or a stream; None if there is nothing to choose.

    Args:
        group: a `fusion` or a `stream`.
        target: the target.
        has_threads: whether a schedule may bind axes to threads.

    Raises:
        CannotTile: the group has no kernel.
    """
    made = lowering_of(group, target)
    made.has_threads = has_threads
    return None if made.domain.is_empty else made


def taken_steps(group: Node, text: str, target: Target, maybe: bool = False) -> list[Step]:
    """Parses a list of steps, and checks that they are legal for the nest of a group.

    A list for a GPU without `launch` gets one, with the usual number of warps. `maybe`: returns no
    steps if the list names an axis that the group does not have.

    Raises:
        UsageError: the text cannot be read, a step is not legal, the group has no loop nest, or a
            matrix product on a CPU reads strided columns.
    """
    steps = parse_steps(text)
    made = lowering_of(group, target)
    if isinstance(target, Gpu) and not any(isinstance(step, Launch) for step in steps):
        is_rows = isinstance(made, RowLowering)
        steps.append(Launch(made.complete(Schedule()).warps if is_rows else Launch.USUAL))
    try:
        if maybe and not _names_axes_of(made.nest, steps):
            return []
        kernel = run_steps(made.nest, steps, target)
    except CannotTile as why:
        raise UsageError(str(why)) from why
    strided = strided_columns(kernel, target) if isinstance(target, Cpu) else ""
    if strided:
        raise UsageError(
            f"the columns that `microkernel` reads from {strided} are strided: pack it"
        )
    return steps


def _names_axes_of(nest: Node, steps: Sequence[Step]) -> bool:
    known = {*axes(nest), "", *(str(getattr(step, "into", "")) for step in steps)}
    named = (str(getattr(s, f, "")) for s in steps for f in ("axis", "inner", "at"))
    return all(axis.partition(".")[0] in known for axis in named)


def shown_steps(node: Node, target: Target) -> Shown:
    """Returns the plain loop nest of a group, or of an op that fusion left on its own, and the
    kernel after each step of its schedule: the text of the step, the reason of the policy, and the
    kernel. Empty for a node without a generated kernel, such as a library call.
    """
    group = group_of(node)
    if not (is_generated(group) or is_stream(group)) or writes_by_data(node):
        return []
    if is_given_to_library(group):
        return []
    try:
        return lowering_of(group, target).made().done
    except CannotTile:
        return []
