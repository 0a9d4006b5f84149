"""Lanes of vectors that stay in registers over the turns of a loop.

LLVM passes a vector of more than a register from block to block in registers only where its lanes
are a power of two; of others it takes every lane out and puts it back in each turn.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from stack.ir.node import Node
from stack.ir.traits import is_loop
from stack.passes.cpu_loops.borders import Part
from stack.passes.cpu_loops.chunk import is_tile
from stack.target import Cpu


def in_registers(parts: Sequence[Part], tiles: Iterable[Node], cpu: Cpu) -> list[Part]:
    """Parts for which tiles are computed: where a loop carries some, of a power of two registers,
    and what is left of one.

    A chunk of many is a whole number of registers already.
    """
    loops = [n for n in tiles if is_loop(n)]
    carried = [p.dtype for n in loops for p in n.blocks[0].params if is_tile(p)]
    if not carried:
        return list(parts)
    lanes = cpu.vector_bytes // max(dtype.bytes for dtype in carried)
    return [piece for part in parts for piece in _pieces(part, lanes)]


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
