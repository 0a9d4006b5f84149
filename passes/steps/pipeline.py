"""pipeline: prefetch the loads of a loop some iterations ahead.

    loop(...) {kind="serial"} ...      pipeline r.0 3      loop(...) {ahead=3, kind="serial"} ...

The printer decides where prefetched tiles go: registers, shared memory, or only the caches. Legal
for a serial loop that loads a tile whose index depends on the iteration. GPUs only.

Source: Lam, Software pipelining (PLDI 1988); `software_pipeline` of TensorIR.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from stack.ir.node import Block, Node
from stack.ir.traits import is_load
from stack.passes.steps.edit import Edit
from stack.passes.steps.loops import loops_along, why_not_free
from stack.passes.steps.step import Step, why_no_gpu
from stack.target import Target


@dataclass(frozen=True)
class Pipeline(Step):
    """Prefetch the tiles that the loops over an axis load.

    Attributes:
        axis: the axis.
        turns: the number of iterations in flight.
    """

    name: ClassVar[str] = "pipeline"
    axis: str
    turns: int

    def why_not(self, kernel: Node, target: Target | None = None) -> str:
        why = why_no_gpu(self, target) or why_not_free(kernel, self.axis)
        if why:
            return why
        if self.turns < 1:
            return f"axis {self.axis}: at least 1 iteration is in flight, not {self.turns}"
        if not any(map(_reads, loops_along(kernel, self.axis))):
            return f"no loop over {self.axis} loads a tile whose index depends on {self.axis}"
        return ""

    def apply(self, kernel: Node) -> Node:
        def change(old: Node, args: Sequence[Node], block: Block) -> Node:
            made = old.rebuilt(args, blocks=[block])
            if not _reads((made, ())):
                return made
            return made.rebuilt(attrs={**old.attrs, "ahead": self.turns})

        return Edit(kernel).change_loops(self.axis, change)


def _reads(found: tuple[Node, tuple[Node, ...]]) -> bool:
    block = found[0].blocks[0]
    var = block.params[0]
    return any(is_load(n) and n.tensor.rank and var in n.vars for n in block.all_nodes)
