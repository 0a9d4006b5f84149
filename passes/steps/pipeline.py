"""pipeline: prefetch the loads of a loop some iterations ahead.

    loop(...) {kind="serial"} ...      pipeline r.0 3      loop(...) {ahead=3, kind="serial"} ...

If some loops over the axis reduce, only these change: iterations that only store are independent,
and overlap anyway. With `through=shared`, all tiles that the loop loads are copied through shared
memory. Legal for a serial loop that loads a tile whose index depends on the iteration, if the tiles
of all iterations in flight fit in shared memory. GPUs only.

Source: Lam, Software pipelining (PLDI 1988); `software_pipeline` of TensorIR.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from stack.ir.node import Node
from stack.ir.traits import is_load
from stack.passes.steps.edit import Edit
from stack.passes.steps.loops import loops_along, stores_only, why_not_free
from stack.passes.steps.step import LoopStep
from stack.passes.steps.tiles import loaded_bytes
from stack.target import Gpu, Target

SHARED = "shared"


@dataclass(frozen=True)
class Pipeline(LoopStep, name="pipeline", only=Gpu):
    """Prefetch the tiles that the loops over an axis load.

    Attributes:
        turns: the number of iterations in flight.
        through: `shared` to copy the tiles through shared memory; "" leaves it to the printer.
    """

    turns: int
    through: str = ""

    def broken(self, kernel: Node, target: Target | None) -> Iterator[str]:
        yield why_not_free(kernel, self.axis)
        if self.turns < 1:
            yield f"axis {self.axis}: at least 1 iteration is in flight, not {self.turns}"
        if self.through not in ("", SHARED):
            yield f"axis {self.axis}: tiles go through {SHARED}, not through {self.through!r}"
        loops = [loop for loop, _ in loops_along(kernel, self.axis)]
        if not any(map(_reads, loops)):
            yield f"no loop over {self.axis} loads a tile whose index depends on {self.axis}"
        if self.through and isinstance(target, Gpu):
            held = self.turns * max(loaded_bytes(loop.blocks[0]) for loop in loops)
            if held > target.operand_bytes:
                room = f"shared memory has room for {target.operand_bytes}"
                yield f"axis {self.axis}: {self.turns} iterations load {held} bytes, and {room}"

    def change(self, edit: Edit, loop: Node) -> Node:
        others = (other for other, _ in loops_along(edit.kernel, self.axis))
        is_last = stores_only(loop) and not all(map(stores_only, others))
        if is_last or not _reads(loop):
            return loop
        staged = {"staged": True} if self.through else {}
        return loop.rebuilt(attrs={**loop.attrs, "ahead": self.turns, **staged})


def _reads(loop: Node) -> bool:
    block = loop.blocks[0]
    var = block.params[0]
    return any(is_load(n) and n.tensor.rank and var in n.vars for n in block.all_nodes)
