"""Lowering by steps: from the plain loop nest of a group to its kernel."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from functools import cached_property
from typing import Generic, TypeVar

from stack.ir.node import Node
from stack.ir.types import F32, I64
from stack.passes.nest.emit import emit
from stack.passes.steps.loops import axes
from stack.passes.steps.primitives import (
    IllegalStep,
    LoweredKernel,
    Reorder,
    Split,
    parse_steps,
)
from stack.passes.tiling.frame import CannotTile
from stack.schedule import Policy, Schedule, is_list, schedules_of
from stack.target import Cpu, Target

Machine = TypeVar("Machine", bound=Target)


class StepLowering(Policy, Generic[Machine]):
    """Lowers a group from its plain loop nest to its kernel by loop transformations (steps), and
    picks what a schedule of the group leaves open.

    Args:
        group: a `fusion` or a `stream`.
        target: the target.

    Attributes:
        has_threads: whether a schedule may bind axes to threads.
    """

    has_threads = False

    def __init__(self, group: Node, target: Machine) -> None:
        self.group, self.target = group, target

    @cached_property
    def nest(self) -> Node:
        """The plain loop nest of the group. Raises CannotTile if it has none."""
        return plain_nest(self.group, self.target)

    def check(self) -> None:
        """Raises CannotTile if the group has no domain because it has no kernel, or no plain loop
        nest. Lowerings may check more, if that needs no steps.
        """
        _ = self.domain, self.nest

    def complete(self, given: Schedule) -> Schedule:
        return given

    @cached_property
    def schedule(self) -> Schedule:
        """The schedule of the group, after the policy has chosen what the user did not. Raises
        CannotTile if the group has no kernel.
        """
        return Schedule() if self.domain.is_empty else self.of(self.group)

    @abstractmethod
    def take(self, made: LoweredKernel) -> None:
        """Applies the steps of the policy, for the schedule of the group, to the nest in `made`, in
        order. Raises CannotTile if the group turns out to have no kernel.
        """

    def made(self) -> LoweredKernel:
        """Lowers the group by the steps that a user wrote for it, else by those of the policy.
        Returns the kernel with the steps applied to it. Raises CannotTile if it has none.
        """
        made, mine = LoweredKernel(self.nest, self.target), written(self.group)
        try:
            made.take(*parse_steps(mine)) if mine else self.take(made)
        except IllegalStep as why:
            raise CannotTile(str(why)) from why
        return made

    def kernel(self) -> Node:
        """Lowers the group. Returns the kernel. Raises CannotTile if the group has none."""
        return self.made().kernel


def written(group: Node) -> str:
    """Returns the text of the list of steps that a user wrote for a group; "" if there is none."""
    (text, *_) = schedules_of(group) or ("",)
    return text if is_list(text) else ""


def plain_nest(group: Node, target: Target) -> Node:
    """Returns the plain loop nest of a group for a target. Raises CannotTile if it has none.

    CPU kernels have 64-bit indices, and are at level `loop` from the start. GPU kernels keep
    running totals of f32 in f32: most GPUs have few units for f64, and a tile is scanned in a
    logarithmic number of steps, so that errors grow slowly.
    """
    if not isinstance(target, Cpu):
        check_powers(group)
        return emit(group, running=F32)
    nest = emit(group, I64)
    return nest.rebuilt(attrs={**nest.attrs, "level": "loop"})


def check_powers(group: Node) -> None:
    """Raises CannotTile if a group raises integers to integer powers, which GPU kernels cannot
    compute.
    """
    for block in group.blocks:
        if any(n.op == "pow" and not n.dtype.is_float for n in block.nodes):
            raise CannotTile("it raises integers to powers")


def split(made: LoweredKernel, axis: str, size: int, tail: str, why: str) -> tuple[str, str]:
    """Splits an axis of a kernel into blocks of `size` if it is longer. Returns the axis over
    blocks, "" if there is one, and the axis inside of a block.
    """
    if axes(made.kernel).get(axis, 0) <= size:
        return "", axis
    step = Split(axis, size, tail, why=why)
    made.take(step)
    return step.outer, step.inner


def reordered(now: Sequence[str], wanted: Sequence[str], why: str) -> list[Reorder]:
    """Returns the loop interchanges that bring perfectly nested loops into another order.

    Args:
        now: the axes of the loops, outermost first.
        wanted: the same axes in the order that is wanted; axes that are left out become innermost.
        why: the reason of the policy.
    """
    made: list[Reorder] = []
    order = list(now)
    for place, axis in enumerate(wanted):
        for at in range(order.index(axis), place, -1):
            made.append(Reorder(order[at - 1], axis).because(why))
            order[at - 1], order[at] = axis, order[at - 1]
    return made
