"""Allocates the shared memory of a block: arrays with disjoint live ranges share bytes.

Barriers that are needed are found by comparing the memory accesses on either side of one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from stack.ir.memory import starts_of
from stack.ir.node import Block, Node
from stack.ir.traits import is_item, is_memory
from stack.ir.warp_ops import group_operands


@dataclass
class AccessedMemory:
    """The memory values that some statements of a kernel read and write.

    Nobody reads the destination of an asynchronous copy before the copy is waited for. Until then
    it is `begun`. Each thread waits only for what it copied itself, so then it is `arrived`, which
    counts as a write by that thread.
    """

    read: set[Node] = field(default_factory=set[Node])
    written: set[Node] = field(default_factory=set[Node])
    begun: set[Node] = field(default_factory=set[Node])
    arrived: set[Node] = field(default_factory=set[Node])

    def meets(self, later: AccessedMemory) -> bool:
        """True if a barrier is needed between these accesses and the accesses `later`.

        That is so if one of the two writes memory that the other one reads or writes.
        """
        return bool(
            (self.written | self.arrived) & (later.read | later.written | later.begun)
            or self.read & (later.written | later.begun)
            or self.begun & later.written
        )

    def add(self, other: AccessedMemory) -> None:
        self.read |= other.read
        self.written |= other.written
        self.begun |= other.begun
        self.arrived |= other.arrived

    def clear(self) -> None:
        for memories in (self.read, self.written, self.begun, self.arrived):
            memories.clear()


def roots_of(block: Block) -> dict[Node, Node]:
    """Maps each memory value of a kernel to the parameter or array whose state it is."""
    found = {p: p for p in block.params}

    def visit(inside: Block) -> None:
        for node in inside.nodes:
            if node.op == "alloc":
                found[node] = node
            elif node.op in ("store", "async_copy"):
                found[node] = found[node.args[0]]
            elif node.op == "loop":
                _enter(node, found)
                visit(node.blocks[0])
            elif node.op == "async_wait" and is_memory(node):
                found[node] = found[node.args[0]]
            elif is_item(node) and is_memory(node):
                source = node.args[0]
                found[node] = found[starts_of(source)[int(node.attrs["index"])]]
            if node.op == "loop" and is_memory(node):
                found[node] = found[starts_of(node)[0]]

    visit(block)
    return found


def _enter(loop: Node, found: dict[Node, Node]) -> None:
    for p, init in zip(loop.blocks[0].params[1:], starts_of(loop), strict=True):
        if is_memory(p):
            found[p] = found[init]


def touched(node: Node, roots: Mapping[Node, Node]) -> AccessedMemory:
    """Returns the global and shared memory that a statement reads and writes.

    Includes statements in its blocks. Values in registers do not count.
    """
    found = AccessedMemory()
    pending = [node]
    while pending:
        current = pending.pop()
        if current.op == "load" and current.args[0].tensor.space != "local":
            found.read.add(roots[current.args[0]])
        elif current.op == "store" and current.args[0].tensor.space != "local":
            found.written.add(roots[current.args[0]])
        elif current.op == "mma_sync":  # it reads its operands directly from memory
            sources = [a.args[0] if a.op == "transpose" else a for a in current.args[:2]]
            found.read |= {roots[s.args[0]] for s in sources if s.op == "load_matrix"}
        elif current.op == "warpgroup_mma":
            found.read |= {roots[o[0]] for o in group_operands(current) if is_memory(o[0])}
        elif current.op == "async_copy":
            found.begun.add(roots[current.args[0]])
            found.read.add(roots[current.args[1]])
        elif current.op == "async_wait":
            found.arrived |= {roots[a] for a in current.args}
        pending.extend(n for block in current.blocks for n in block.nodes)
    return found


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
