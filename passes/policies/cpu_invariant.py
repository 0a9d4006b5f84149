"""Loop-invariant work on a CPU: hoist it by moving the axis that it does not depend on inside.

The coordinates and weights of a sampled image are the same for all channels. If most of the work of
neighbouring threads is equal, the policy makes their axis an inner loop. Everything that does not
depend on that axis is then computed once, before the loop, and stays in registers.
"""

from __future__ import annotations

from math import prod

from stack.ir import ops
from stack.ir.node import Node
from stack.ir.traits import is_load, is_loop, is_memory, is_store
from stack.passes.policies.cpu_plan import Plan, is_innermost
from stack.passes.policies.step_lowering import LoweredKernel
from stack.passes.steps.loops import all_loops, axes, axis_of, loops_along, starts_of
from stack.passes.steps.primitives import Reorder
from stack.target import Cpu


def hoist(made: LoweredKernel, plan: Plan, cpu: Cpu) -> bool:
    """Move the axis with the largest share of invariant work inside the vector axis.

    Returns whether there is such an axis.
    """
    axis = _invariant_axis(made.kernel, plan, cpu)
    if not axis:
        return False
    why = f"most of the work does not depend on {axis}"
    for inner in [*plan.kept[plan.kept.index(axis) + 1 :], plan.lane]:
        if not made.may(Reorder(axis, inner).because(why)):
            return False
        if inner in plan.kept:
            plan.move(axis, inner)
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
