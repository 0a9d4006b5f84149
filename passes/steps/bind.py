"""bind: run the iterations of a loop in parallel.

    loop(%o0) {kind="serial"} {(%i < 64, ...)     bind i grid      loop(%o0) {kind="grid"} ...

`grid` runs each iteration as a program of a GPU. `cores` distributes the iterations over the
threads of a CPU. Legal if iterations are independent: the loop carries only memory, and each
iteration stores to its own elements. All enclosing loops must be bound to the same kind. For
`cores`, they must also be perfectly nested.

Source: `parallel` and `gpu_blocks` of Halide; `bind` of TensorIR (Feng et al., ASPLOS 2023).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from stack.ir.node import Node
from stack.passes.steps.edit import Edit
from stack.passes.steps.loops import (
    axis_of,
    bound_to,
    inner_loop,
    is_serial,
    loops_along,
    stores_only,
    why_no_axis,
    why_shared,
)
from stack.passes.steps.step import LoopStep
from stack.target import Cpu, Gpu, Target

KINDS = {"grid": "grid", "cores": "parallel"}  # the kind of the loop


@dataclass(frozen=True)
class Bind(LoopStep, name="bind"):
    """Run the iterations of the loops over an axis as programs or on threads.

    Attributes:
        to: `grid` for the programs of a GPU, `cores` for the threads of a CPU.
    """

    to: str

    def broken(self, kernel: Node, target: Target | None) -> Iterator[str]:
        if self.to not in KINDS:
            yield f"axis {self.axis}: it can be bound to {' or '.join(KINDS)}, not to {self.to!r}"
        if isinstance(target, Cpu if self.to == "grid" else Gpu):
            own, other = ("GPUs", "cores") if self.to == "grid" else ("CPUs", "grid")
            why = f"`{self.to}` is for {own}, not for {target.title}"
            yield f"axis {self.axis}: {why}: write `bind {self.axis} {other}`"
        yield why_no_axis(kernel, self.axis)
        for loop, around in loops_along(kernel, self.axis):
            if not is_serial(loop):
                yield f"axis {self.axis} is bound to {bound_to(loop)} already"
            if not stores_only(loop):
                yield (
                    f"the loop over {self.axis} carries a value from one iteration to the next, as"
                    " a sum does, so its iterations cannot be distributed: bind another axis"
                )
            inside = next((o for o in around if o.attrs["kind"] != KINDS[self.to]), None)
            if inside is not None:
                name = f"{inside.attrs['kind']} loop over {axis_of(inside)}"
                yield f"the loop over {self.axis} is inside of the {name}: bind that one before"
            if self.to == "cores" and around and inner_loop(around[-1], self.axis) is None:
                outer = axis_of(around[-1])
                yield f"not perfectly nested: the body of {outer} is more than {self.axis}"
            yield why_shared(loop, own=True)

    def change(self, edit: Edit, loop: Node) -> Node:
        return loop.rebuilt(attrs={**loop.attrs, "kind": KINDS[self.to]})
