"""Lowering by steps: from the plain loop nest of a group to its kernel."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, Generic, TypeVar

from stack.errors import UsageError
from stack.ir.node import Node
from stack.ir.traits import is_generated, is_stream, writes_by_data
from stack.ir.types import F32, I64
from stack.passes.nest.emit import emit
from stack.passes.steps.primitives import IllegalStep, Reorder, Step, parse_steps, run_steps
from stack.passes.tiling.frame import CannotTile
from stack.passes.tiling.single_ops import alone, is_bare
from stack.schedule import Policy, is_list, schedules_of
from stack.target import Cpu, Target

NEST = "the plain loop nest"
Shown = list[tuple[str, str, Node]]  # text of a step, its reason, the kernel after it
Machine = TypeVar("Machine", bound=Target)


class LoweredKernel:
    """A kernel that is being lowered, and the loop transformations (steps) applied to it so far.

    Attributes:
        kernel: the kernel after these steps.
        target: the target of the kernel.
        done: for each step its text, its reason and the kernel after it; the nest comes first.
    """

    def __init__(self, nest: Node, target: Target) -> None:
        self.kernel, self.target = nest, target
        self.done: Shown = [(NEST, "", nest)]

    def take(self, *steps: Step) -> None:
        """Applies loop transformations in order. Raises IllegalStep at the first one that is not
        legal.
        """
        for step in steps:
            why = step.why_not(self.kernel, self.target)
            if why:
                raise IllegalStep(len(self.done), step, why)
            self._apply(step)

    def may(self, step: Step) -> bool:
        """Applies a loop transformation if it is legal for the kernel. Returns whether it is."""
        is_legal = not step.why_not(self.kernel, self.target)
        if is_legal:
            self._apply(step)
        return is_legal

    def _apply(self, step: Step) -> None:
        self.kernel = step.apply(self.kernel)
        self.done.append((str(step), step.why, self.kernel))


class StepLowering(Generic[Machine]):
    """Lowers a group from its plain loop nest to its kernel by loop transformations (steps).

    Args:
        group: a `fusion` or a `stream`.
        target: the target.
    """

    def __init__(self, group: Node, target: Machine) -> None:
        self.group, self.target = group, target

    @cached_property
    def nest(self) -> Node:
        """The plain loop nest of the group. Raises CannotTile if it has none."""
        return plain_nest(self.group, self.target)

    def check(self) -> None:
        """Raises CannotTile if the group has no policy because it has no kernel, or no plain loop
        nest. Lowerings may check more, if that needs no steps.
        """
        self.policy()
        _ = self.nest

    def policy(self) -> Policy | None:
        """Returns the policy that picks what a schedule of the group leaves open; None if there is
        nothing to choose. Raises CannotTile if the group has no kernel.
        """
        return None

    def steps(self) -> Sequence[Step]:
        """Returns the loop transformations that lower the nest, in order. Raises CannotTile if the
        group has no kernel.
        """
        raise NotImplementedError

    def take(self, made: LoweredKernel) -> None:
        """Applies the loop transformations to the nest in `made`, in order: by default `steps`.
        Lowerings override it if their steps depend on the kernel so far.

        Raises CannotTile if the group turns out to have no kernel.
        """
        made.take(*self.steps())

    def made(self) -> LoweredKernel:
        """Lowers the group. Returns the kernel with the steps applied to it. Raises CannotTile if
        the group has no kernel.
        """
        made = LoweredKernel(self.nest, self.target)
        try:
            self.take(made)
        except IllegalStep as why:
            raise CannotTile(str(why)) from why
        return made

    def kernel(self) -> Node:
        """Lowers the group. Returns the kernel. Raises CannotTile if the group has none."""
        return self.made().kernel

    def shown(self) -> Shown:
        """Lowers the group. Returns its plain loop nest, and the kernel after each step. Raises
        CannotTile if the group has no kernel.
        """
        return self.made().done


class UserSteps(StepLowering[Machine]):
    """Lowers a group by the list of steps that a user wrote for it."""

    def steps(self) -> Sequence[Step]:
        """Parses the loop transformations that the user wrote."""
        return parse_steps(written(self.group))


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


def shown(node: Node, lowering_of: Callable[[Node], StepLowering[Any]]) -> Shown:
    """Returns the plain loop nest of a group, and the kernel after each step of its schedule.

    Args:
        node: a group, or an op that fusion left on its own.
        lowering_of: returns the lowering of a group for a target.

    Returns:
        For each kernel the text of the step, the reason of the policy and the kernel. The list is
        empty for a node without a generated kernel, such as a library call.
    """
    if not (is_bare(node) or is_generated(node) or is_stream(node)) or writes_by_data(node):
        return []
    group = alone(node) if is_bare(node) else node
    try:
        return lowering_of(group).shown()
    except CannotTile:
        return []


def check_list(group: Node, steps: list[Step], target: Target) -> Node:
    """Returns the kernel of a group after steps. Raises UsageError if a step is not legal for its
    nest, or if there is no nest.
    """
    try:
        return run_steps(plain_nest(group, target), steps, target)
    except CannotTile as why:
        raise UsageError(str(why)) from why


def check_powers(group: Node) -> None:
    """Raises CannotTile if a group raises integers to integer powers, which GPU kernels cannot
    compute.
    """
    for block in group.blocks:
        if any(n.op == "pow" and not n.dtype.is_float for n in block.nodes):
            raise CannotTile("it raises integers to powers")


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
