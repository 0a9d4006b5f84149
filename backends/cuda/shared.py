"""Allocates the shared memory of a block: arrays with disjoint live ranges share bytes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from stack.ir.node import Node

from .hazards import touched

ALIGNMENT = 128  # bytes
SWIZZLED = 1024  # bytes, for arrays with swizzled rows, eight of them at a time


def alignment_of(alloc: Node) -> int:
    """The alignment of an array, in bytes."""
    return SWIZZLED if alloc.attrs.get("swizzle") else ALIGNMENT


def bytes_of(alloc: Node) -> int:
    """The bytes of an array, rounded up to the alignment of the next array."""
    sizes = [int(s) for s in alloc.tensor.shape]  # pyright: ignore[reportArgumentType]
    return -(-math.prod(sizes) * alloc.dtype.bytes // ALIGNMENT) * ALIGNMENT


def in_a_row(allocs: Sequence[Node]) -> dict[Node, int]:
    """Returns the byte offset of each array, one array after the other; swizzled ones first."""
    placed: dict[Node, int] = {}
    end = 0
    for alloc in sorted(allocs, key=alignment_of, reverse=True):
        placed[alloc] = -(-end // alignment_of(alloc)) * alignment_of(alloc)
        end = placed[alloc] + bytes_of(alloc)
    return placed


def offsets(
    allocs: Sequence[Node], statements: Sequence[Node], roots: Mapping[Node, Node]
) -> dict[Node, int]:
    """The offset of each array, from the statements of a program in order.

    The live range of an array is from the first statement that accesses it to the last. An array
    that a loop accesses is live in all of the loop.
    """
    spans: dict[Node, tuple[int, int]] = {}
    for at, node in enumerate(statements):
        found = touched(node, roots)
        for memory in found.read | found.written | found.begun | found.arrived:
            spans[memory] = spans.get(memory, (at, at))[0], at
    placed: dict[Node, int] = {}
    for alloc in sorted(allocs, key=lambda a: (-bytes_of(a), spans.get(a, (0, 0)))):
        own = spans.get(alloc, (0, 0))
        taken = [
            (start, start + bytes_of(other))
            for other, start in placed.items()
            if _meet(own, spans.get(other, (0, 0)))
        ]
        start = 0
        for low, high in sorted(taken):
            if start + bytes_of(alloc) <= low:
                break
            start = max(start, -(-high // alignment_of(alloc)) * alignment_of(alloc))
        placed[alloc] = start
    return placed


def _meet(a: tuple[int, int], b: tuple[int, int]) -> bool:
    return a[0] <= b[1] and b[0] <= a[1]


def regions(placed: Mapping[Node, int]) -> dict[Node, Node]:
    """Maps each array in shared memory to one representative of the arrays that share its bytes."""
    shared = {a: a for a in placed}
    for first, at in placed.items():
        for second, start in placed.items():
            if _meet((at, at + bytes_of(first) - 1), (start, start + bytes_of(second) - 1)):
                old, new = shared[second], shared[first]
                shared = {k: new if v is old else v for k, v in shared.items()}
    return shared
