"""Transpose strided operands once, in a copy, for dot-product instructions of a CPU.

Such an instruction multiplies neighbours along the contracted axis, so it needs unit stride there.
Rows of a table that a stream sums have another layout, and each program would transpose all of them
again. A matmul would interleave its strided rows again for each panel of columns. Operands that a
kernel computes are not changed: a transpose there would split its group.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from stack.ir.axes import parse_rule
from stack.ir.builder import make, new_params, remade
from stack.ir.contraction import product_types
from stack.ir.node import Block, Node, remade_block
from stack.ir.stream_op import streamed_axes
from stack.ir.traits import is_contraction, is_input, is_stream
from stack.passes.cpu_products.gemm import mma_of, tile_of
from stack.passes.policies.cpu_streams import CpuStreams
from stack.passes.positions.streams import StreamShape, memory_side, stream_axes
from stack.passes.rules.dot_layout import dot_axes, make_dot
from stack.passes.rules.transposes import inverse, transposed
from stack.passes.tiling.contraction import roles_of
from stack.passes.tiling.frame import CannotTile, static
from stack.rewrite.engine import replace
from stack.rewrite.log import Log
from stack.target import Cpu

AxisOrders = Mapping[int, tuple[int, ...]]  # arguments of a stream, and the copy's order of axes


def transpose_operands(block: Block, log: Log) -> Block:
    """Returns the block with streams that read such operands from a copy, if that costs less."""
    changed: dict[Node, Node] = {}
    for node in block.nodes:
        if not is_stream(node):
            continue
        turned = _across(node, log.cpu)
        if turned and log.spend("transpose_operands"):
            changed[node] = _reading(node, turned)
    return replace(block, changed)


def _across(stream: Node, cpu: Cpu) -> AxisOrders:
    """Returns the arguments of a stream that should be read from a transposed copy, by number, with
    the axis order of the copy. They are strided along the axis that a dot-product instruction
    contracts, and the copy costs less than transposing in every program."""
    states, _, finish = stream.blocks
    try:
        axes, schedule = stream_axes(stream), CpuStreams(stream, cpu).schedule
    except CannotTile:
        return {}
    rows, panel = schedule.block("m"), schedule.block("k")
    count = len(finish.params) - len(stream.args)
    users = [a for b in (states, finish) for n in b.nodes for a in n.args]
    found: dict[int, tuple[int, ...]] = {}
    for state in states.results:
        if not is_contraction(state):
            continue
        side = memory_side(state)
        operand, along = streamed_axes(state)[side]
        last = operand.tensor.rank - 1
        mma = cpu.mma(product_types(state), 1, rows, panel)
        if not is_input(operand) or along == last or mma is None or mma.group == 1:
            continue
        place = states.params.index(operand)
        if sum(u in (operand, finish.params[count + place]) for u in users) > 1:
            continue  # another node reads it in another way
        size = 2 * static(operand.tensor.bytes)
        copied = size / cpu.memory_rate + cpu.launch
        if copied < _programs(axes, rows, state, side) * size / cpu.cache_rate:
            found[place] = (*(i for i in range(last + 1) if i != along), along)
    return found


def _programs(axes: StreamShape, rows: int, state: Node, side: int) -> int:
    """Returns the number of programs, each of `rows` rows, that read each element of an operand."""
    rule = parse_rule(state.attrs["rule"])
    held = {a.names[0] for a in rule.inputs[side]}
    names = [a.names[0] for a in rule.outputs[0]]
    sizes = [
        -(-size // rows) if str(place) == axes.row else size
        for name, size, place in zip(
            names, map(static, state.shape), axes.states[state], strict=True
        )
        if name not in held
    ]
    return prod(sizes)


def _reading(stream: Node, turned: AxisOrders) -> Node:
    """Returns the stream on transposed copies of the arguments in `turned`. Its blocks transpose
    them back, which costs no copy there."""
    states, correct, finish = stream.blocks
    args = [
        make("transpose", (a,), {"perm": turned[i]}) if i in turned else a
        for i, a in enumerate(stream.args)
    ]
    start = finish.params[: len(finish.params) - len(args)]
    own = new_params("p", [a.type for a in args], start)
    backs = [
        make("transpose", (p,), {"perm": inverse(turned[i])}) if i in turned else p
        for i, p in enumerate(own)
    ]
    blocks = (_on(states, (), own, backs), correct, _on(finish, start, own, backs))
    return Node("stream", args, stream.attrs, stream.type, blocks)


def _on(block: Block, start: tuple[Node, ...], own: list[Node], backs: list[Node]) -> Block:
    """Returns a block with the parameters `start` and `own`. Its nodes read the values `backs`
    instead of the old parameters after `start`."""
    done = {p: p for p in start}
    done.update(zip(block.params[len(start) :], backs, strict=True))
    return remade_block(block, remade(block.results, done), [*start, *own])


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
        roles = roles_of(dot, by_lane=True)
        inputs, output = dot_axes(dot)
        side, x = roles.left, dot.args[roles.left]
        names = inputs[side]
        if not (roles.contracted and names[-1] == roles.row and is_input(x)):
            return None
        inputs[side] = [n for n in names if n in output] + [n for n in names if n not in output]
        args = [*dot.args]
        args[side] = transposed(x, [names.index(n) for n in inputs[side]])
        made = make_dot(args, inputs, output, dot)
        if mma_of(made, cpu) is not None:  # no such instruction reads them in this layout
            return made
        size = static(x.tensor.bytes)
        columns = prod(roles.sizes[n] for n in output if n not in names)
        panels = -(-columns // tile_of(dot, cpu)[1])
    except CannotTile:
        return None
    copied = 2 * size / cpu.memory_rate + cpu.launch
    return made if copied < panels * size / cpu.cache_rate else None
