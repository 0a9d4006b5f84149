"""A kernel that steps make of the plain loop nest of its group."""

from __future__ import annotations

from abc import ABC, abstractmethod

from stack.ir.node import Node
from stack.passes.nest.emit import emit
from stack.passes.steps.all import IllegalStep, Step, parse_steps, run_steps
from stack.passes.tiling.frame import CannotTile
from stack.schedule import schedules_of
from stack.target import Gpu


class Stepped(ABC):
    """A group that is lowered by steps.

    Args:
        group: a fusion, or a stream.
        gpu: the target.
    """

    def __init__(self, group: Node, gpu: Gpu) -> None:
        self.group, self.gpu = group, gpu

    def nest(self) -> Node:
        """The plain loop nest. Raises CannotTile."""
        return emit(self.group)

    @abstractmethod
    def steps(self, nest: Node) -> list[Step]:
        """The steps, in order. Raises CannotTile."""

    def kernel(self) -> Node:
        """The kernel node. Raises CannotTile."""
        check_powers(self.group)
        nest = self.nest()
        try:
            return run_steps(nest, self.steps(nest), self.gpu)
        except IllegalStep as why:
            raise CannotTile(str(why)) from why


class ByHand(Stepped):
    """A group that names the steps which somebody wrote for it."""

    def steps(self, nest: Node) -> list[Step]:
        return parse_steps(schedules_of(self.group)[0])


def check_powers(group: Node) -> None:
    """Raise CannotTile for a group that raises integers to powers."""
    for block in group.blocks:
        if any(n.op == "pow" and not n.dtype.is_float for n in block.nodes):
            raise CannotTile("it raises integers to powers")
