"""Prepacking: a separate kernel packs the panels once if an operand is the same in all calls."""

from __future__ import annotations

from stack.ir.node import Node
from stack.ir.traits import behind, maker, runs_once
from stack.ir.types import TensorType
from stack.passes.cpu_loops.blocked_sums import sum_in_blocks
from stack.passes.cpu_loops.dot import find_dot, is_packed
from stack.passes.cpu_loops.gemm import packed_operand, prepacked
from stack.target import Cpu


def has_kept_panels(kernel: Node, cpu: Cpu) -> bool:
    """True if a tile kernel packs an operand that is the same in all calls, such as a weight."""
    kept = [runs_once(maker(behind(a))) for a in kernel.args]
    dot = find_dot(kernel.blocks[0])
    if not any(kept) or dot is None or is_packed(dot):
        return False
    operand = packed_operand(kernel.blocks[0], cpu)
    return operand is not None and kept[operand]


def distribute_prepacked(kernel: Node, cpu: Cpu) -> Node:
    """Lowers a tile kernel of one dot to two kernels: one packs panels, one multiplies them."""
    made = prepacked(kernel.blocks[0], cpu)
    args = list(kernel.args)
    attrs = {"level": "loop", "name": "pack", "ops": ("transpose",)}
    panels = made.packing.results[0].tensor
    type_ = TensorType(panels.dtype, panels.shape)
    packing = Node("kernel", [args[made.operand]], attrs, type_, (made.packing,))
    args[made.operand] = packing
    attrs = {**kernel.attrs, "level": "loop"}
    return Node("kernel", args, attrs, kernel.type, (sum_in_blocks(made.block),))
