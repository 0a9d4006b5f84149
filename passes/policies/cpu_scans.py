"""Scans and scatters on a CPU.

A scan along the innermost axis becomes a scan of vectors with a carried total. Along another axis,
each lane carries its own total. A scatter copies its operand, then applies updates in order, as
vectors if no index selects the innermost axis.

    cumsum of 8 rows of 300:     split j 64 tail=peel; vectorize j.1; bind i cores
"""

from __future__ import annotations

from stack.ir.axes import parse_rule
from stack.ir.node import Node
from stack.ir.traits import is_running
from stack.passes.nest.scope import letter
from stack.passes.policies.cpu_vectors import Plan, vectorize
from stack.passes.policies.step_lowering import LoweredKernel, StepLowering
from stack.passes.steps.loops import axes
from stack.passes.steps.primitives import Bind
from stack.target import Cpu


class CpuScans(StepLowering[Cpu]):
    """Lowers a group whose result is one scan or one scatter."""

    def take(self, made: LoweredKernel) -> None:
        """Applies the loop transformations of the policy to the kernel. Raises CannotTile if the
        group has no such kernel.
        """
        (result,) = self.group.blocks[0].results
        plan = _scan_plan(result) if is_running(result) else _scatter_plan(result)
        if plan.lane in axes(made.kernel):
            vectorize(made, plan, self.target)
        for axis in plan.parallel:
            if axis in axes(made.kernel):
                made.may(Bind(axis, "cores"))


def _scan_plan(node: Node) -> Plan:
    """Returns the roles of a scan's axes: the innermost one is vectorized, the others are
    distributed over threads, except for the scanned one.
    """
    scanned, last = int(node.attrs["axis"]), node.tensor.rank - 1
    kept = [letter(axis) for axis in range(last) if axis != scanned]
    return Plan(letter(last), scanned == last, kept, list(kept))


def _scatter_plan(node: Node) -> Plan:
    """Returns the roles of a scatter's axes: the innermost one is vectorized, the others are
    distributed over threads, except for those that an index selects.
    """
    *outer, last = parse_rule(node.attrs["rule"]).inputs[0]
    kept = [axis.names[0] for axis in outer if not axis.mark]
    return Plan(last.names[0], False, kept, list(kept))
