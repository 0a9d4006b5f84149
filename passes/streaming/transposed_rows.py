"""Transpose strided rows of matmuls once, in a copy, if many panels read them.

A tile of rows reads one piece of a line at each step along the contracted axis. Instructions that
multiply neighbours along that axis first have to interleave them, again for each panel of columns.
Operands that a kernel computes are not changed: a transpose there would split its group.
"""

from __future__ import annotations

from math import prod

from stack.ir.node import Block, Node
from stack.ir.traits import is_input
from stack.passes.cpu_products.gemm_policy import GemmPolicy
from stack.passes.cpu_products.mma import mma_of
from stack.passes.rules.dot_layout import dot_axes, make_dot
from stack.passes.rules.transposes import transposed
from stack.passes.tiling.frame import CannotTile, static
from stack.rewrite.engine import replace
from stack.rewrite.log import Log
from stack.schedule import Schedule
from stack.target import Cpu


def transpose_rows(block: Block, log: Log) -> Block:
    """Returns the block with matmuls that read such rows from a copy, if that costs less."""
    changed: dict[Node, Node] = {}
    for node in block.nodes:
        turned = _turned(node, log.cpu) if node.op == "dot" else None
        if turned is not None and log.spend("transpose_rows"):
            changed[node] = turned
    return replace(block, changed)


def _turned(dot: Node, cpu: Cpu) -> Node | None:
    """Returns the matmul on a transposed copy of its left operand, whose rows are strided. None if
    they are not, or if the copy costs more than it saves."""
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
        if mma_of(made, cpu) is not None:  # no such instruction reads them in this layout
            return made
        size = static(x.tensor.bytes)
        columns = prod(policy.roles.sizes[n] for n in output if n not in names)
        panels = -(-columns // policy.complete(Schedule()).block("n"))
    except CannotTile:
        return None
    copied = 2 * size / cpu.memory_rate + cpu.launch
    return made if copied < panels * size / cpu.cache_rate else None
