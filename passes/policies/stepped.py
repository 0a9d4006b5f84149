"""Lowering by steps: from the plain loop nest of a group to its kernel."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Generic, TypeVar

from stack.errors import UsageError
from stack.ir.node import Node
from stack.ir.types import I64
from stack.passes.nest.emit import emit
from stack.passes.steps.all import IllegalStep, Step, parse_steps, run_steps
from stack.passes.tiling.frame import CannotTile
from stack.schedule import is_list, schedules_of
from stack.target import Cpu, Target

NEST = "the plain loop nest"
WHOLE = "made whole"
Shown = list[tuple[str, str, Node]]  # what a step says, why it was taken, the kernel after it
Machine = TypeVar("Machine", bound=Target)


class Made:
    """A kernel and the steps that have been applied to it.

    Attributes:
        kernel: the kernel after these steps.
        done: for each step its text, its reason and the kernel after it; the nest comes first.
    """

    def __init__(self, nest: Node, target: Target) -> None:
        self.kernel, self.target = nest, target
        self.done: Shown = [(NEST, "", nest)]

    def take(self, *steps: Step) -> None:
        """Apply steps. Raises IllegalStep at the first that is not legal."""
        for step in steps:
            why = step.why_not(self.kernel, self.target)
            if why:
                raise IllegalStep(len(self.done), step, why)
            self._apply(step)

    def may(self, step: Step) -> bool:
        """Apply a step if it is legal. Returns whether it is."""
        is_legal = not step.why_not(self.kernel, self.target)
        if is_legal:
            self._apply(step)
        return is_legal

    def _apply(self, step: Step) -> None:
        self.kernel = step.apply(self.kernel)
        self.done.append((str(step), step.why, self.kernel))


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
        return plain_nest(self.group, self.target)

    @abstractmethod
    def take(self, made: Made) -> None:
        """Take the steps, in order. Raises CannotTile."""

    def made(self) -> Made:
        """The kernel with its steps. Raises CannotTile."""
        made = Made(self.nest(), self.target)
        try:
            self.take(made)
        except IllegalStep as why:
            raise CannotTile(str(why)) from why
        return made

    def kernel(self) -> Node:
        """The kernel node. Raises CannotTile."""
        return self.made().kernel

    def shown(self) -> Shown:
        """The nest, and the kernel after each step. Raises CannotTile."""
        return self.made().done


class ByHand(Stepped[Machine]):
    """A group that names the steps which somebody wrote for it."""

    def take(self, made: Made) -> None:
        """Take the steps that are written."""
        made.take(*parse_steps(written(self.group)))


def written(group: Node) -> str:
    """The list of steps that a group names; "" where it names none."""
    (text, *_) = schedules_of(group) or ("",)
    return text if is_list(text) else ""


def plain_nest(group: Node, target: Target) -> Node:
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
        run_steps(plain_nest(group, target), steps, target)
    except CannotTile as why:
        raise UsageError(str(why)) from why


def check_powers(group: Node) -> None:
    """Raise CannotTile for a group that raises integers to powers."""
    for block in group.blocks:
        if any(n.op == "pow" and not n.dtype.is_float for n in block.nodes):
            raise CannotTile("it raises integers to powers")
