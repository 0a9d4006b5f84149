"""The plan for a CPU kernel: which axis is vectorized, which axes are distributed over threads."""

from __future__ import annotations

from dataclasses import dataclass

from stack.ir.node import Node
from stack.passes.steps.loops import axis_of, loops_along


@dataclass
class Plan:
    """The role of each axis of a loop nest. Policies update it as they take steps.

    Attributes:
        lane: the axis to vectorize; "" if its extent is 1.
        is_reduced: whether `lane` is a reduction axis.
        kept: the other axes that are not reduced, outermost first.
        parallel: the axes to distribute over threads, outermost first.
    """

    lane: str
    is_reduced: bool
    kept: list[str]
    parallel: list[str]

    def move(self, axis: str, inner: str) -> None:
        """Records that the loop over `axis`, which is not reduced, is now directly inside that over
        `inner`.
        """
        for axes in (self.kept, self.parallel):
            axes.remove(axis)
            axes.insert(axes.index(inner) + 1, axis)


def is_innermost(kernel: Node, plan: Plan) -> bool:
    """True if the loops over the vector axis are directly inside the loop over the last axis in
    `plan.kept`, without a loop between them.
    """
    if not (plan.kept and plan.lane):
        return False
    along = loops_along(kernel, plan.lane)
    return all(around and axis_of(around[-1]) == plan.kept[-1] for _, around in along)
