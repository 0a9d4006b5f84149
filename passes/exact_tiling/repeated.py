"""Programs that do most of their work alike: it is done once, before a loop over what differs.

Places and weights of a sampled image are those of all of its channels. Where programs along an axis
compute nearly the same, the axis becomes a loop of each program: what does not move with it is made
in front of the loop, and stays in registers.
"""

from __future__ import annotations

import math

from stack.ir import ops
from stack.ir.node import Node
from stack.ir.traits import is_load, is_loop, is_store, nest_of
from stack.passes.cpu_loops.chunk import is_fold, is_tile, reachable
from stack.passes.exact_tiling.tiler import Tiler
from stack.passes.tiling.loops import extent_of
from stack.target import Cpu

SHARE = 3 / 4  # of the work of a program that repeats: with less, memory is better read in order


def tile_rows(group: Node, cpu: Cpu) -> Node:
    """The kernel node of a group of rows. Raises CannotTile."""
    tiler = Tiler(group)
    kernel = tiler.kernel()
    axis = tiler.axis_of.get(repeated(kernel, cpu))
    return kernel if axis is None else Tiler(group, inside=axis).kernel()


def repeated(kernel: Node, cpu: Cpu) -> Node | None:
    """The index of programs that do most of their work alike; None where the others are too few
    for all cores, or where a program reduces."""
    loops, program = nest_of(kernel.blocks[0], "grid")
    nodes = reachable(program.results)
    if any(is_loop(n) or is_fold(n) for n in nodes):
        return None
    work = {n: _work(n) for n in nodes if is_tile(n) or is_store(n)}
    programs = math.prod(map(extent_of, loops))
    found: dict[Node, float] = {}
    for loop in loops:
        index = loop.blocks[0].params[0]
        share = sum(w for n, w in work.items() if index not in n.vars) / sum(work.values())
        if share >= SHARE and programs // extent_of(loop) >= cpu.cores:
            found[index] = share
    return max(found, key=found.__getitem__, default=None)


def _work(node: Node) -> float:
    """Operations for a lane; one for what comes from memory or goes there."""
    return 1 if is_load(node) or is_store(node) else ops.lookup(node.op).flops
