"""The parallel loops at the top of a kernel, whose iterations threads share as one range.

loop {kind="parallel"} (%i < 8)  ...       iterations 0 to 7
loop {kind="parallel"} (%i < 4)  ...       iterations 8 to 11: the parts of a concatenation
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from stack.ir.node import Block, Node
from stack.ir.traits import is_load, is_loop, is_memory, is_store, maker, nest_of


@dataclass(frozen=True)
class SharedLoop:
    """Perfectly nested parallel loops.

    Attributes:
        nest: the loops, outermost first.
        program: the body of the innermost one.
    """

    nest: Sequence[Node]
    program: Block

    @property
    def extents(self) -> list[int]:
        """The number of iterations of each loop."""
        return [int(loop.blocks[0].params[0].attrs["extent"]) for loop in self.nest]

    @property
    def total(self) -> int:
        """The number of iterations of all loops together."""
        return math.prod(self.extents)


def shared_loops(block: Block) -> list[SharedLoop]:
    """Returns the loops of a kernel whose iterations threads share, in order.

    If the kernel stores elsewhere too, or reads what it stores, these are the last loop alone, or
    none if it does not make all results. Each thread then runs the rest of the kernel for itself.
    """
    found: dict[Node, SharedLoop] = {}
    for node in block.nodes:
        if is_loop(node, "parallel"):
            inner, program = nest_of(node.blocks[0], "parallel")
            found[node] = SharedLoop((node, *inner), program)
    if found.keys() >= _storing(block.nodes) and not _reads_results(block):
        return [*found.values()]
    makers = {maker(result) for result in block.results}
    return [shared for loop, shared in found.items() if makers == {loop}]


def _storing(nodes: Sequence[Node]) -> set[Node]:
    """Returns the nodes that store to arrays outside of a kernel, themselves or in a loop."""
    return {n for n in nodes if any(map(_is_result, n.args)) and (is_store(n) or is_loop(n))}


def _is_result(value: Node) -> bool:
    """True for an array outside of a kernel, or a version of it."""
    return is_memory(value) and value.tensor.space == "global"


def _reads_results(block: Block) -> bool:
    """True if a kernel loads from an array that it stores to."""
    stored = {a for n in _storing(block.nodes) for a in n.args}
    inputs = set(block.params) - stored
    loads = [n.args[0] for n in block.all_nodes if is_load(n)]
    return any(_is_result(m) and m not in inputs for m in loads)
