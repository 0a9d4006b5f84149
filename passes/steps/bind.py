"""bind: what executes the loops along an axis.

    loop(%o0) {kind="serial"} {(%i < 64, ...)     bind i grid      loop(%o0) {kind="grid"} ...

`grid` makes each turn a program of a GPU, `cores` lets the cores of a CPU share out the turns. Both
are legal where nothing that one turn makes is read by another: the loop carries memory alone, each
turn stores to places that are its own, and only loops of the same kind stand around it; those of
cores do nothing else.

Source: `parallel` and `gpu_blocks` of Halide; `bind` of TensorIR (Feng et al., ASPLOS 2023).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from stack.ir.node import Node
from stack.passes.steps.loops import (
    axis_of,
    bound_to,
    inner_loop,
    is_memory,
    is_serial,
    loops_along,
    starts_of,
    why_no_axis,
    with_kind,
)
from stack.passes.steps.step import Step
from stack.passes.steps.stored import why_shared
from stack.target import Cpu, Gpu, Target

KINDS = {"grid": "grid", "cores": "parallel"}  # the kind of the loop


@dataclass(frozen=True)
class Bind(Step):
    """Let programs, threads or one core take the turns of the loops along an axis.

    Attributes:
        to: `grid`, or `cores` for a CPU.
    """

    name: ClassVar[str] = "bind"
    axis: str
    to: str

    def why_not(self, kernel: Node, target: Target | None = None) -> str:
        if self.to not in KINDS:
            return f"{self.to!r} is nothing that an axis is bound to: {', '.join(KINDS)}"
        if isinstance(target, Cpu if self.to == "grid" else Gpu):
            return f"{target.title} has no {self.to}"
        why = why_no_axis(kernel, self.axis)
        if why:
            return why
        for loop, around in loops_along(kernel, self.axis):
            if not is_serial(loop):
                return f"axis {self.axis} is bound to {bound_to(loop)} already"
            inside = next((o for o in around if o.attrs["kind"] != KINDS[self.to]), None)
            if inside is not None:
                name = f"{inside.attrs['kind']} loop along {axis_of(inside)}"
                return f"the loop along {self.axis} stands inside of the {name}"
            if self.to == "cores" and around and inner_loop(around[-1], self.axis) is None:
                return f"the loop along {axis_of(around[-1])} does more than the one in it"
            if not all(map(is_memory, starts_of(loop))):
                return f"the loop along {self.axis} carries a value from one turn to the next"
            why = why_shared(loop, own=True)
            if why:
                return why
        return ""

    def apply(self, kernel: Node) -> Node:
        return with_kind(kernel, self.axis, KINDS[self.to])
