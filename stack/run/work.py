"""Count the operations of kernels, and name what they compute, from the steps of the program.

Generated code computes more than the program: tiles are padded, and loops compute addresses. The
last tensor-level stage has one step for each kernel, under the same name; its operations count.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from stack.ir.cost import cost
from stack.ir.equivalence import cached_by_class
from stack.ir.func import Func
from stack.ir.node import Node, walk
from stack.ir.traits import is_input
from stack.run.backend import Kernel, LazyKernel
from stack.wings import call_if_here

# nodes by name, each with the names of its operands that are computed
Steps = dict[str, tuple[Node, tuple[str, ...]]]


def with_work(kernels: Sequence[Kernel], stages: Iterable[Func]) -> list[Kernel]:
    """Returns the kernels with the operations and names of their steps in the last tensor-level
    stage.

    A step that becomes several kernels keeps the counts of their code, which do not overlap.
    """
    formed: Func | None = None
    lowered: Steps = {}
    for func in stages:
        if func.level == "tensor" and all(node.op != "kernel" for node in func.nodes):
            formed = func
        else:
            lowered |= _by_name(func)
    steps = _by_name(formed) if formed is not None else {}
    return [_counted(kernel, steps, lowered) for kernel in kernels]


def _by_name(func: Func) -> Steps:
    found: Steps = {}
    for block, node in walk(func.body):
        args = tuple(block.names.get(a, "") for a in node.args if not is_input(a))
        found.setdefault(block.names.get(node, ""), (node, args))
    return found


def _counted(kernel: Kernel, steps: Steps, lowered: Steps) -> Kernel:
    step, made = steps.get(kernel.stage_node), lowered.get(kernel.stage_node)
    if step is None:
        return kernel
    make: dict[str, Callable[[], Any]] = {
        "computes": lambda: call_if_here("group-name", step[0]) or ""
    }
    if kernel.kind == "generated" and made is not None:
        # else another kernel computes a part of the step
        if all(n in steps or lowered[n][0].op == "alloc" for n in made[1] if n):
            make["flops"] = lambda: step_flops(step[0])
    return LazyKernel(kernel, make)


@cached_by_class
def step_flops(step: Node) -> float:
    """Returns the scalar operations of one node of a tensor-level function (a fusion or a single
    op), or 0 if its sizes are symbolic.
    """
    flops = cost(step).flops
    return float(flops) if isinstance(flops, int) else 0.0
