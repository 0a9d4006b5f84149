"""Rows of products that lie across in memory: turned once, where many panels would read them.

A tile of rows takes one piece of a line at each step along the summed axis. Instructions that
multiply neighbours along that axis have to put them together first, and each panel of columns does
all of it again. What a kernel makes stays as it is: a transpose there would cut its group in two.
"""

from __future__ import annotations

from math import prod

from stack.ir.node import Block, Node
from stack.ir.traits import is_input
from stack.passes.exact_tiling.gemm_policy import GemmPolicy
from stack.passes.exact_tiling.mma import mma_of
from stack.passes.rules.dot_layout import dot_axes, make_dot
from stack.passes.rules.transposes import transposed
from stack.passes.tiling.frame import CannotTile, static
from stack.rewrite.engine import Replacement, replace
from stack.rewrite.log import Log
from stack.schedule import Schedule
from stack.target import Cpu


def turn_rows(block: Block, log: Log) -> Block:
    """The block with products that read such rows from a copy, where that costs less."""
    changed: dict[Node, Replacement] = {}
    for node in block.nodes:
        turned = _turned(node, log.cpu) if node.op == "dot" else None
        if turned is not None and log.spend("turn_rows"):
            changed[node] = Replacement(turned)
    return replace(block, changed) if changed else block


def _turned(dot: Node, cpu: Cpu) -> Node | None:
    """The product of rows that are turned; None where none lie across, or a copy costs more."""
    try:
        policy = GemmPolicy(dot, cpu)
        inputs, output = dot_axes(dot)
        side, x = policy.roles.left, dot.args[policy.roles.left]
        names = inputs[side]
        if not (policy.roles.contracted and names[-1] == policy.roles.row and is_input(x)):
            return None
        inputs[side] = [n for n in names if n in output] + [n for n in names if n not in output]
        args = [*dot.args]
        args[side] = transposed(x, [names.index(n) for n in inputs[side]])
        made = make_dot(args, inputs, output, dot)
        if mma_of(made, cpu) is not None:  # no such instruction takes them as they lie
            return made
        size = static(x.tensor.bytes)
        columns = prod(policy.roles.sizes[n] for n in output if n not in names)
        panels = -(-columns // policy.complete(Schedule()).block("n"))
    except CannotTile:
        return None
    copied = 2 * size / cpu.memory_rate + cpu.launch
    return made if copied < panels * size / cpu.cache_rate else None
