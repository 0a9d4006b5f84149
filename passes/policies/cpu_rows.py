"""Elementwise work and reductions on a CPU: threads share rows, vectors run along a row.

The policy vectorizes the innermost axis in vectors of a few registers, and distributes the other
kept axes over threads.

    softmax of 1024 rows of 1000:
    stage exp local; split r 64 tail=peel; vectorize r.1; rfactor r.0; bind i cores

It splits loops where guards of loads change, as in concatenated and padded arrays, and transposes
strided operands block by block.
"""

from __future__ import annotations

from math import prod

from stack.ir import ops
from stack.ir.memory import starts_of
from stack.ir.node import Node
from stack.ir.traits import is_load, is_loop, is_memory, is_store
from stack.passes.nest.emit import axis_names
from stack.passes.policies.cpu_transposed import (
    move_unit_stride_inward,
    stage_inputs,
    stage_outputs,
    strided_inputs,
    vectorize_rows,
)
from stack.passes.policies.cpu_vectors import (
    Plan,
    is_innermost,
    specialize,
    stage_values,
    sum_lanes_apart,
    vectorize,
)
from stack.passes.policies.row_space import RowSpace
from stack.passes.policies.step_lowering import StepLowering
from stack.passes.steps.loops import all_loops, axes, axis_of, loops_along, stores_only
from stack.passes.steps.primitives import Bind, ComputeWith, LoweredKernel, Reorder
from stack.passes.tiling.frame import CannotTile
from stack.target import Cpu


class CpuRows(StepLowering[Cpu]):
    """Lowers an elementwise group or a reduction."""

    def take(self, made: LoweredKernel) -> None:
        space, found = RowSpace(self.group), axes(made.kernel)
        names = axis_names(space.root, space.reduced)
        lane = names[-1] if names and names[-1] in found else ""
        kept = [names[a] for a in space.kept if names[a] in found and names[a] != lane]
        plan = Plan(lane, len(names) - 1 in space.reduced, kept, list(kept))
        for axis in found:
            made.may(ComputeWith(axis).because("shared operands are read once"))
        if {*axes(made.kernel)} != {plan.lane}:
            self._arrange(made, plan)
        if plan.lane:
            if plan.is_reduced:
                stage_values(made, plan.lane, self.target)
            vectorize(made, plan, self.target)
            if plan.is_reduced:
                sum_lanes_apart(made, plan)
        _check_hoisted(made.kernel)
        for axis in plan.parallel:
            made.may(Bind(axis, "cores"))

    def _arrange(self, made: LoweredKernel, plan: Plan) -> None:
        """Orders and cuts the loops around the vector axis, so that vectors are full and memory is
        accessed with unit stride. Sets `lane` and `kept` of the plan.
        """
        row = vectorize_rows(made, plan, self.target)
        if hoist(made, plan, self.target):
            specialize(made, plan.kept, plan.kept[-1])
        elif row:
            specialize(made, plan.kept, row)
        else:
            move_unit_stride_inward(made, plan)
            strided = strided_inputs(made.kernel, plan, self.target)
            own = plan.kept[:-1] if strided else plan.kept
            specialize(made, own, own[-1] if own else "")
            if strided:
                stage_inputs(made, plan, strided, self.target)
            stage_outputs(made, plan)


def _check_hoisted(kernel: Node) -> None:
    """Raise CannotTile if a loop repeats a reduction that does not depend on its variable."""
    for loop, around in all_loops(kernel):
        if stores_only(loop):
            continue
        for outer in around:
            if loop.vars.isdisjoint(outer.blocks[0].params):
                raise CannotTile(
                    f"it reduces in every iteration of the loop along {axis_of(outer)}"
                )


def hoist(made: LoweredKernel, plan: Plan, cpu: Cpu) -> bool:
    """Move the axis with the largest share of invariant work inside the vector axis.

    Returns whether there is such an axis.

    The coordinates and weights of a sampled image are the same for all channels. If most of the
    work of neighbouring threads is equal, their axis becomes an inner loop. Everything that does
    not depend on that axis is then computed once, before the loop, and stays in registers.
    """
    axis = _invariant_axis(made.kernel, plan, cpu)
    if not axis:
        return False
    why = f"most of the work does not depend on {axis}"
    if not (plan.sink(made, axis, why) and made.may(Reorder(axis, plan.lane).because(why))):
        return False
    plan.kept.remove(axis)
    plan.parallel.remove(axis)
    return True


def _invariant_axis(kernel: Node, plan: Plan, cpu: Cpu) -> str:
    """Returns the name of the axis that most of the kernel's operations do not depend on.

    "" if there is none, if the remaining iterations are fewer than the cores, or if the kernel
    reduces.
    """
    if len(plan.kept) < 2 or not is_innermost(kernel, plan):
        return ""
    if not all(is_memory(start) for loop, _ in all_loops(kernel) for start in starts_of(loop)):
        return ""
    ((loop, around),) = loops_along(kernel, plan.lane)[:1]
    lane, found = loop.blocks[0].params[0], axes(kernel)
    nodes = loop.blocks[0].all_nodes
    work = {n: _work(n) for n in nodes if not is_loop(n) and lane in n.vars}
    programs = prod(found[axis] for axis in plan.kept)
    shares: dict[str, float] = {}
    for outer in around:
        axis, var = axis_of(outer), outer.blocks[0].params[0]
        share = sum(w for n, w in work.items() if var not in n.vars) / sum(work.values())
        is_invariant = share >= cpu.rows.invariant_share
        if axis in plan.kept and is_invariant and programs // found[axis] >= cpu.cores:
            shares[axis] = share
    return max(shares, key=shares.__getitem__, default="")


def _work(node: Node) -> float:
    """Estimates the operations of a node for one element of its result; 1 for a load or a store."""
    return 1 if is_load(node) or is_store(node) else ops.lookup(node.op).flops
