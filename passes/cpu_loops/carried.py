"""Lanes of vectors that stay in registers over the turns of a loop, or from before it.

LLVM passes a vector of more than a register from block to block in registers only where its lanes
are a power of two; of others it takes every lane out and puts it back in each turn.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from stack.ir.node import Node
from stack.ir.traits import is_loop, is_positions, repeats
from stack.passes.cpu_loops.borders import Part
from stack.passes.cpu_loops.chunk import is_tile, is_value
from stack.target import Cpu


def in_registers(
    parts: Sequence[Part], tiles: Iterable[Node], cpu: Cpu, program: Node | None = None
) -> list[Part]:
    """Parts for which tiles are computed: where a loop keeps some, of a power of two registers,
    and what is left of one.

    A chunk of many is a whole number of registers already.

    Args:
        parts: in which lanes are computed.
        tiles: what is computed.
        cpu: whose registers.
        program: the index of the loop that is around; what does not move with it is kept.
    """
    kept: list[Node] = []
    for node in tiles:
        if is_loop(node):
            kept += filter(is_tile, node.blocks[0].params)
        elif program is not None and program not in node.vars and not _is_constant(node):
            kept.append(node)
    if not kept:
        return list(parts)
    lanes = cpu.vector_bytes // max(max(node.dtype.bytes for node in kept), 1)
    return [piece for part in parts for piece in _pieces(part, lanes)]


def _is_constant(node: Node) -> bool:
    """Whether LLVM makes a vector where it is needed."""
    return not is_value(node) or is_positions(node) or repeats(node)


def _pieces(part: Part, lanes: int) -> list[Part]:
    if part.chunks > 1 or part.limits:
        return [part]
    found: list[Part] = []
    start, left = part.start, part.width
    while left:
        width = lanes << (left // lanes).bit_length() - 1 if left > lanes else left
        found.append(replace(part, start=start, width=width))
        start, left = start + width, left - width
    return found
