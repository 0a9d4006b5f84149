"""The predicted time of the steps of a lowered function: launch, and arithmetic or memory."""

from __future__ import annotations

from stack.errors import UsageError
from stack.ir.cost import cost
from stack.ir.func import Func
from stack.ir.node import Node, walk
from stack.ir.traits import is_contraction, is_control
from stack.measure.kernel_time import bounds
from stack.target import Target


def price(step: Node, machine: Target) -> float:
    """Returns the predicted seconds of a group, or of a node that is a step of its own.

    It is the launch plus the larger bound, by arithmetic or by memory; 0 for views and constants.
    Loops and branches count 0: their bodies are the same, whatever the groups around them are.

    Raises UsageError for symbolic sizes.
    """
    if is_control(step):
        return 0.0
    work = cost(step)
    if not isinstance(work.flops, int) or not isinstance(work.bytes, int):
        raise UsageError("the sizes are symbolic: give arguments of fixed sizes, without --dynamic")
    if not work.flops and not work.bytes:
        return 0.0
    has_dot = is_contraction(step) or any(
        is_contraction(n) for block in step.blocks for _, n in walk(block)
    )
    ops = ["dot"] if has_dot else []
    limits = bounds({"ops": ops, "flops": work.flops, "bytes": work.bytes}, machine)
    return limits["launch"] + max(limits["arithmetic"], limits["memory"])


def total_price(func: Func, machine: Target) -> float:
    """Returns the predicted seconds of all steps of a function, one after the other."""
    return sum(price(node, machine) for node in func.nodes)


def kernels_in(func: Func, machine: Target) -> int:
    """Returns the number of steps that take time."""
    return sum(price(node, machine) > 0 for node in func.nodes)
