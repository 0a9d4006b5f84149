"""launch: set the number of warps of a program, and of stages of a matmul's loads.

    kernel(...) {...}        launch 4 stages=3        kernel(...) {stages=3, warps=4}

Legal if the number of warps is a power of two, the target allows that many threads in a program,
all tiles fit in registers, and the operands of all stages fit in shared memory. If a loop is bound
to the grid, so are the loops beside it: programs run nothing else. GPUs only.

Source: `num_warps` and `num_stages` of Triton.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from stack.ir.bounds import Integers
from stack.ir.builder import constant, make
from stack.ir.node import Block, Node
from stack.ir.traits import is_load, is_loop, is_store
from stack.ir.warp_ops import WARP
from stack.passes.steps.access import parts_of, positions, spread_along
from stack.passes.steps.edit import Edit
from stack.passes.steps.loops import axis_of
from stack.passes.steps.step import Step
from stack.passes.steps.tiles import loaded_bytes, why_no_registers
from stack.passes.tiling.frame import static
from stack.target import Gpu, Target


@dataclass(frozen=True)
class Launch(Step, name="launch", only=Gpu):
    """Set the launch configuration of a kernel.

    Attributes:
        warps: warps of a program.
        stages: stages of the software pipeline that loads the operands of a matmul.
        programs: the number of persistent programs; 0 for one program per iteration of the grid.
    """

    USUAL: ClassVar[int] = 4  # warps: one for each scheduler of a multiprocessor
    warps: int
    stages: int = 2
    programs: int = 0

    def broken(self, kernel: Node, target: Target | None) -> Iterator[str]:
        if self.warps < 1 or self.warps & (self.warps - 1):
            yield f"{self.warps} warps: the number is not a power of two"
        if self.stages < 1:
            yield f"stages={self.stages}: at least 1"
        if isinstance(target, Gpu) and self.warps * WARP > target.threads:
            yield f"{self.warps * WARP} threads, and a program has at most {target.threads}"
        yield _why_no_program(kernel.blocks[0])
        yield why_no_registers(kernel, target)
        yield self._why_no_room(kernel, target)

    def _why_no_room(self, kernel: Node, target: Target | None) -> str:
        """Returns why operands of all stages exceed shared memory; "" if they fit."""
        if not isinstance(target, Gpu):
            return ""
        staged = [n for n in kernel.blocks[0].all_nodes if is_loop(n) and n.attrs.get("staged")]
        held = self.stages * max((loaded_bytes(n.blocks[0]) for n in staged), default=0)
        room = target.operand_bytes
        if held <= room:
            return ""
        return f"stages={self.stages}: operands of {held} bytes; shared memory has room for {room}"

    def apply(self, kernel: Node) -> Node:
        held: dict[str, object] = {"warps": self.warps, "stages": self.stages}
        if self.programs:
            held["programs"] = self.programs
        return Edit(kernel.rebuilt(attrs={**kernel.attrs, **held})).mapped(_masked)


def _why_no_program(block: Block) -> str:
    """Returns why some part of a block is outside of its loops on the grid; "" if none is."""
    bound = [node for node in block.nodes if is_loop(node, "grid")]
    if not bound:
        return ""
    for node in block.nodes:
        if is_loop(node) and not is_loop(node, "grid"):
            axis, other = axis_of(node), axis_of(bound[0])
            return f"axis {axis} is not bound to the grid, and {other} beside it is"
        if is_store(node):
            return f"a store is outside of the loop over {axis_of(bound[0])}, which is on the grid"
    return next(filter(None, (_why_no_program(loop.blocks[0]) for loop in bound)), "")


def _masked(node: Node) -> Node | None:
    """Rewrites a load or store that is clipped at the end of memory and also masked by a condition:
    a mask over its elements replaces the clipping. None for other nodes.
    """
    if not (is_load(node) or is_store(node)) or "clip" not in node.attrs:
        return None
    index, mask, other, tile = parts_of(node)
    if mask is None:
        return None
    memory = node.args[0]
    lead = memory.tensor.rank - len(tile)
    test = spread_along(mask, (), tile)
    for axis, size in enumerate(tile):
        first, extent = index[lead + axis], static(memory.shape[lead + axis])
        if not Integers().may_pass(first, size, extent):
            continue
        place = make("add", (first, positions(first.dtype, size)))
        inside = make("lt", (place, constant(extent, first.dtype)))
        test = make("and", (test, spread_along(inside, (axis,), tile)))
    attrs = {k: v for k, v in node.attrs.items() if k != "clip"}
    if is_store(node):
        return make("store", [*node.args[:2], *index, test], attrs)
    zero = constant(0, node.dtype) if other is None else other
    return make("load", [memory, *index, test, zero], attrs, hint=node.type)
