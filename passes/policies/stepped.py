"""Kernels that steps make of the plain loop nest of a group."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Generic, TypeVar

from stack.errors import UsageError
from stack.ir.node import Node
from stack.ir.types import I64
from stack.passes.nest.emit import emit
from stack.passes.steps.all import IllegalStep, Step, applied, parse_steps, run_steps
from stack.passes.tiling.frame import CannotTile
from stack.schedule import is_list, schedules_of
from stack.target import Cpu, Target

NEST = "the plain loop nest"
WHOLE = "made whole"
Shown = list[tuple[str, str, Node]]  # what a step says, why it was taken, the kernel after it
Machine = TypeVar("Machine", bound=Target)


class Stepped(ABC, Generic[Machine]):
    """A group that is lowered by steps.

    Args:
        group: a fusion, or a stream.
        target: the machine.
    """

    def __init__(self, group: Node, target: Machine) -> None:
        self.group, self.target = group, target

    def nest(self) -> Node:
        """The plain loop nest. Raises CannotTile."""
        return nest_of(self.group, self.target)

    @abstractmethod
    def steps(self, nest: Node) -> list[Step]:
        """The steps, in order. Raises CannotTile."""

    def kernel(self) -> Node:
        """The kernel node. Raises CannotTile."""
        nest = self.nest()
        try:
            return run_steps(nest, self.steps(nest), self.target)
        except IllegalStep as why:
            raise CannotTile(str(why)) from why

    def shown(self) -> Shown:
        """The nest, and the kernel after each step. Raises CannotTile."""
        nest = self.nest()
        done = applied(nest, self.steps(nest), self.target)
        return [(NEST, "", nest), *((str(step), step.why, kernel) for step, kernel in done)]


class ByHand(Stepped[Machine]):
    """A group that names the steps which somebody wrote for it."""

    def steps(self, nest: Node) -> list[Step]:
        return parse_steps(written(self.group))


def written(group: Node) -> str:
    """The list of steps that a group names; "" where it names none."""
    (text, *_) = schedules_of(group) or ("",)
    return text if is_list(text) else ""


def nest_of(group: Node, target: Target) -> Node:
    """The plain loop nest of a group as a target takes it: CPUs count in 64 bits, and their kernels
    are loops from the beginning. Raises CannotTile."""
    if not isinstance(target, Cpu):
        check_powers(group)
        return emit(group)
    nest = emit(group, I64)
    return nest.rebuilt(attrs={**nest.attrs, "level": "loop"})


def check_list(group: Node, steps: list[Step], target: Target) -> None:
    """Raise UsageError where a step is not legal for the nest of a group, or there is no nest."""
    try:
        run_steps(nest_of(group, target), steps, target)
    except CannotTile as why:
        raise UsageError(str(why)) from why


def check_powers(group: Node) -> None:
    """Raise CannotTile for a group that raises integers to powers."""
    for block in group.blocks:
        if any(n.op == "pow" and not n.dtype.is_float for n in block.nodes):
            raise CannotTile("it raises integers to powers")
