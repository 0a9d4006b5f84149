"""The contract of the tile level: the rules that all tilers obey and every lowering relies on.

    programs   grid loops enclose everything else, and carry outputs only
    loops      grid, serial, or a branch; the loop level assigns them to threads
    memory     result `i` is output `i` after its stores; inputs are only read; a state of a memory
               is stored to once, so that data flow defines the order
    accesses   a block is inside its memory, unless `clip` or a mask excludes the rest
    masks      a mask is one bool for all, or one for each element; so is the masked-off value
    both       a clipped block may have a mask of one bool until the kernel has a number of warps,
               the last step of a schedule: while axes wait to be vectorized, a mask may be theirs

Kernels of CPUs, in exact tiles, and of GPUs, in masked powers of two, both obey it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from stack.ir.kernel_ops import access_parts
from stack.ir.memory import memory_of, starts_of
from stack.ir.node import Block, Node
from stack.ir.traits import is_memory

TILE_LOOPS = ("grid", "serial", "branch")


@dataclass(frozen=True)
class Breach:
    """A node of a kernel that breaks a rule of the tile level, and the rule in words."""

    node: Node
    rule: str


def breaches(kernel: Node) -> Iterator[Breach]:
    """Yields each node of a tile-level kernel that breaks a rule which backends rely on."""
    block = kernel.blocks[0]
    yield from _loops(block, is_program=True)
    yield from _memory(kernel)
    for node in _nodes(block):
        if node.op in ("load", "store"):
            yield from _access(node, is_scheduled="warps" in kernel.attrs)


def _nodes(block: Block) -> Iterator[Node]:
    for node in block.nodes:
        yield node
        for inner in node.blocks:
            yield from _nodes(inner)


def _loops(block: Block, is_program: bool) -> Iterator[Breach]:
    """Yields the loops that break the contract: of a kind that the tile level lacks, grid loops
    inside other loops, and grid loops that carry more than outputs.

    `is_program`: True if only grid loops enclose the block.
    """
    for node in block.nodes:
        if node.op != "loop":
            continue
        kind = str(node.attrs["kind"])
        if kind not in TILE_LOOPS:
            kinds = ", ".join(TILE_LOOPS)
            yield Breach(node, f"a loop at the tile level is of kind {kinds}, not {kind}")
        if kind == "grid":
            if not is_program:
                yield Breach(node, "a grid loop is inside of a loop of a program")
            carried = node.blocks[0].params[1:]
            if any(not is_memory(p) or p.tensor.space != "global" for p in carried):
                yield Breach(node, "a grid loop carries outputs alone: programs share no values")
        yield from _loops(node.blocks[0], is_program and kind == "grid")


# ---- memory


def _memory(kernel: Node) -> Iterator[Breach]:
    block = kernel.blocks[0]
    inputs, outputs = block.params[: len(kernel.args)], block.params[len(kernel.args) :]
    origin = memory_of(block)
    for store in (n for n in _nodes(block) if n.op == "store"):
        if origin(store) in inputs:
            yield Breach(store, f"it stores to input %{origin(store).attrs['name']}")
    yield from _states(block)
    for out, result in zip(outputs, block.results, strict=True):
        if origin(result) is not out:
            yield Breach(result, f"the kernel returns it for output %{out.attrs['name']}")


def _states(block: Block) -> Iterator[Breach]:
    """Yields the nodes that break the rule for memory: only one store or loop may use each state of
    a memory, and a loop must carry every memory on as a later state of the same memory.
    """
    taken: dict[Node, Node] = {}
    for node in block.nodes:
        carried = _carried(node) if node.op == "loop" else []
        for memory in [node.args[0]] if node.op == "store" else [start for start, _, _ in carried]:
            if taken.setdefault(memory, node) is not node:
                yield Breach(node, "it stores to memory that another node stores to as well")
        for _, held, result in carried:
            if memory_of(node.blocks[0])(result) is not held:
                rule = f"its loop carries it on as %{held.attrs['name']}, which is other memory"
                yield Breach(result, rule)
        for inner in node.blocks:
            yield from _states(inner)


def _carried(loop: Node) -> list[tuple[Node, Node, Node]]:
    """The memories that a loop carries, each as its state before the loop, the parameter of the
    body, and the body's result.
    """
    block = loop.blocks[0]
    held = zip(starts_of(loop), block.params[1:], block.results, strict=True)
    return [found for found in held if is_memory(found[0])]


# ---- accesses


def _access(node: Node, is_scheduled: bool) -> Iterator[Breach]:
    """Yields the rules that a load or store breaks.

    `is_scheduled`: True if the kernel has a number of warps, so that no step follows.
    """
    memory = node.args[0].tensor
    tile = node.tensor if node.op == "load" else node.args[1].tensor
    index, mask, other = access_parts(node)
    for part, what in ((mask, "mask"), (other, "value for the others")):
        if part is not None and part.tensor.rank and part.shape != tile.shape:
            yield Breach(node, f"its {what} is {part.type}, and its elements are {tile}")
    is_block = not any(i.tensor.rank for i in index)
    is_masked = mask is not None and (is_scheduled or mask.tensor.rank > 0)
    if node.attrs.get("clip") and (is_masked or not is_block):
        yield Breach(node, "`clip` is for a block without a mask")
    if is_block and mask is None and not node.attrs.get("clip"):
        lead = memory.rank - tile.rank
        for axis, extent in enumerate(tile.shape, lead):
            size = memory.shape[axis]
            if isinstance(size, int) and isinstance(extent, int) and extent > size:
                rule = f"{extent} elements along axis {axis} of {memory}, without clip or mask"
                yield Breach(node, rule)
