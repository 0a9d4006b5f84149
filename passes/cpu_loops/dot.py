"""Queries about the dot of a kernel: its position, its instruction and the memory it reads."""

from __future__ import annotations

from stack.ir.contraction import product_types, tile_extents
from stack.ir.node import Block, Node
from stack.ir.traits import is_contraction, is_load, unconverted
from stack.target import Cpu, Mma


def find_dot(block: Block) -> Node | None:
    """Returns the first dot (matmul node) in the body of a kernel; None if it has none."""
    return next(filter(is_contraction, block.all_nodes), None)


def tile_mma(dot: Node, cpu: Cpu) -> Mma | None:
    """Returns the matrix instruction of the CPU that computes the dot of a tile; None if the CPU
    has none for its types and extents. With an instruction, operands keep their narrow type instead
    of being converted to the type of the sums.
    """
    found = tile_extents(dot)
    if found is None:
        return None
    return cpu.mma(product_types(dot), found.rows, found.columns, found.depth)


def is_packed(dot: Node) -> bool:
    """True if an operand of a kernel's dot is in local memory, because the kernel itself has copied
    it there in packed order.
    """
    loads = [a for a in map(unconverted, dot.args) if is_load(a)]
    return any(a.args[0].tensor.space == "local" for a in loads)
