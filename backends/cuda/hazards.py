"""Finds barriers that are needed: compares the memory accesses on either side of one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from stack.ir.kernel_ops import loop_parts
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
                found[node] = found[_start(source)[int(node.attrs["index"])]]
            if node.op == "loop" and is_memory(node):
                found[node] = found[_start(node)[0]]

    visit(block)
    return found


def _start(loop: Node) -> Sequence[Node]:
    """Returns the start values of the values that a loop carries between its iterations."""
    return loop_parts(loop.args, loop.attrs)[1]


def _enter(loop: Node, found: dict[Node, Node]) -> None:
    for p, init in zip(loop.blocks[0].params[1:], _start(loop), strict=True):
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
