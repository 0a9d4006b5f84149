"""bind: what executes the loops along an axis.

    loop(%o0) {kind="serial"} {(%i < 64, ...)     bind i grid      loop(%o0) {kind="grid"} ...

`grid` makes each turn a program of its own. It is legal where nothing that one turn makes is read
by another: the loop carries memory alone, each turn stores to places that are its own, and only
loops of a grid stand around it.

Source: `parallel` and `gpu_blocks` of Halide; `bind` of TensorIR (Feng et al., ASPLOS 2023).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from stack.ir.node import Node
from stack.passes.steps.loops import (
    is_memory,
    is_serial,
    loops_along,
    starts_of,
    why_no_axis,
    with_kind,
)
from stack.passes.steps.step import Step
from stack.passes.steps.stored import why_shared
from stack.target import Target

KINDS = ("grid",)


@dataclass(frozen=True)
class Bind(Step):
    """Let programs, threads or one core take the turns of the loops along an axis.

    Attributes:
        to: `grid`.
    """

    name: ClassVar[str] = "bind"
    axis: str
    to: str

    def why_not(self, kernel: Node, target: Target | None = None) -> str:
        if self.to not in KINDS:
            return f"{self.to!r} is nothing that an axis is bound to: {', '.join(KINDS)}"
        why = why_no_axis(kernel, self.axis)
        if why:
            return why
        for loop, around in loops_along(kernel, self.axis):
            if not is_serial(loop):
                return f"axis {self.axis} is bound to {loop.attrs['kind']} already"
            if any(outer.attrs["kind"] != "grid" for outer in around):
                inside = next(o for o in around if o.attrs["kind"] != "grid")
                name = inside.blocks[0].params[0].attrs["name"]
                return f"the loop along {self.axis} stands inside of the serial loop along {name}"
            if not all(map(is_memory, starts_of(loop))):
                return f"the loop along {self.axis} carries a value from one turn to the next"
            why = why_shared(loop, own=True)
            if why:
                return why
        return ""

    def apply(self, kernel: Node) -> Node:
        return with_kind(kernel, self.axis, self.to)
