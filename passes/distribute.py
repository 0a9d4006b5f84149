"""distribute: sum long sums of CPU kernels in blocks.

Schedule steps made the kernels: loops over vectors and memory of a thread, some of them bound to
threads (`passes/policies`). Here a loop that adds many floats becomes a loop over blocks, each of
which starts from zero. That loop becomes a loop over blocks of blocks, and so on: rounding errors
grow with a block, not with the length. This is pairwise summation by a tree of high degree. It
costs one more addition for each `BLOCK` numbers. The upper levels dominate the error, so they have
a lower degree, which costs next to nothing.

Source: N. J. Higham, "The accuracy of floating point summation" (1993).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from itertools import count

from stack.errors import VerifyError
from stack.ir.builder import constant, make, results_of, with_lines
from stack.ir.node import Block, Node, walk
from stack.ir.printer import print_node
from stack.ir.traits import is_kernel, is_loop
from stack.passes.steps.edit import Edit
from stack.passes.steps.guard import is_total
from stack.passes.steps.loops import along, is_serial
from stack.passes.steps.online import identity_like
from stack.passes.tiling.frame import Names
from stack.rewrite.engine import replace
from stack.rewrite.equivalent_groups import CachedTransform
from stack.rewrite.log import Log
from stack.rewrite.passes import BlockPass

BLOCK = 32  # numbers in a block of the lowest level
DEGREE = 8  # blocks in a block of an upper level


@dataclass(frozen=True)
class Distribute(BlockPass):
    """Lower long sums in kernels to sums of blocks."""

    def change(self, block: Block, log: Log) -> Block:
        if log.cpu.refused:
            log.note(log.cpu.refused)
        loops_of = CachedTransform(lambda kernel: with_lines(distribute_kernel(kernel)))
        kernels = (n for n in block.nodes if is_kernel(n) and log.spend("distribute"))
        return replace(block, {node: loops_of(node) for node in kernels})


def distribute_kernel(kernel: Node) -> Node:
    """Lowers one kernel to the loop level. Raises VerifyError for a kernel of a GPU."""
    block = kernel.blocks[0]
    if "warps" in kernel.attrs:
        lines = next((line for line in block.locs.values() if line), ())
        raise VerifyError("a kernel for a GPU has no loops of a CPU", print_node(kernel), lines)
    edit, numbers = Edit(kernel), count(1)

    def visit(_: Node, made: Node) -> Node:
        sums = _long_sums(made)
        return _in_blocks(edit.names, numbers, made, sums, BLOCK) if sums else made

    made = edit.everywhere(visit) if any(_long_sums(n) for _, n in walk(block)) else kernel
    return made.rebuilt(attrs={**kernel.attrs, "level": "loop"})


def _in_blocks(
    names: Names, numbers: Iterator[int], loop: Node, sums: Collection[int], length: int
) -> Node:
    """Splits a loop with long sums into an outer loop over blocks, and an inner one over the
    `length` iterations of each block; the outer one too, if it is long.
    """
    index, *carried = loop.blocks[0].params
    extent, number = int(index.attrs["extent"]), next(numbers)
    blocks = -(-extent // length)
    outer = along(names.own(f"block{number}"), blocks, index)
    own = [names.own(f"{c.attrs['name']}_b{number}") for c in carried]
    held = [Node("var", (), {"name": n}, c.type) for n, c in zip(own, carried, strict=True)]
    first = make("mul", (outer, constant(length, index.dtype)))
    last = make("add", (first, constant(length, index.dtype)))
    if extent % length:
        last = make("min", (last, constant(extent, index.dtype)))
    results = loop.blocks[0].results
    starts = [identity_like(results[i]) if i in sums else h for i, h in enumerate(held)]
    attrs = {**loop.attrs, "limited": True}
    parts = results_of(Node("loop", (first, last, *starts), attrs, loop.type, loop.blocks))
    pairs = enumerate(zip(held, parts, strict=True))
    added = [make("add", pair) if i in sums else pair[1] for i, pair in pairs]
    made = loop.rebuilt(blocks=[Block((outer, *held), added)])
    return made if blocks < 2 * DEGREE else _in_blocks(names, numbers, made, sums, DEGREE)


def _long_sums(node: Node) -> Collection[int]:
    """Returns the numbers of those carried values of a serial loop that are long sums of floats;
    none for other nodes.
    """
    if not is_loop(node) or not is_serial(node):
        return ()
    block = node.blocks[0]
    index, *carried = block.params
    extent = index.attrs.get("extent")
    if not isinstance(extent, int) or extent < 2 * BLOCK:
        return ()
    return {
        i
        for i, (held, result) in enumerate(zip(carried, block.results, strict=True))
        if result.op == "add" and held.dtype.is_float and is_total(block, held, result)
    }
