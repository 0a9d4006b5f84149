"""Layouts of the arrays that a stream reads and writes: views move into its blocks.

A slice that a stream reads is taken in its blocks, and a transpose of its result is written by it,
so neither is a copy.

On a CPU, an instruction for dot products multiplies neighbours along the contracted axis, so it
needs unit stride there. Rows of a table that a stream sums have another layout, and each program
would transpose all of them again. A matmul would interleave its strided rows again for each panel
of columns. Such operands are transposed once, in a copy. Operands that a kernel computes are not: a
transpose there would split its group.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

from stack.errors import RuleError
from stack.ir import ops
from stack.ir.axes import parse_rule
from stack.ir.builder import make, new_params, remade
from stack.ir.contraction import product_types
from stack.ir.control_ops import result_type
from stack.ir.node import Block, Node, remade_block
from stack.ir.stream_op import streamed_axes
from stack.ir.streaming import Tiled
from stack.ir.traits import (
    axis_order,
    is_alias,
    is_contraction,
    is_input,
    is_item,
    is_part,
    is_stream,
    items_of,
    place_of,
    repeats,
)
from stack.passes.cpu_products.gemm import mma_of, tile_of
from stack.passes.policies.cpu_streams import CpuStreams
from stack.passes.positions.streams import memory_side, stream_axes
from stack.passes.rules.dot_layout import dot_axes, make_dot
from stack.passes.rules.transposes import inverse, transposed
from stack.passes.streaming.graph import Graph
from stack.passes.tiling.contraction import roles_of
from stack.passes.tiling.frame import CannotTile, static
from stack.rewrite.engine import replace
from stack.rewrite.log import Log
from stack.target import Cpu


def _with_views(stream: Node, chains: Sequence[Sequence[Node]]) -> Node:
    """Returns the stream with the views of its arguments in its blocks. `chains`: the views of each
    argument, the last one first."""
    args = [chain[-1].args[0] if chain else arg for chain, arg in zip(chains, stream.args)]
    kept = dict.fromkeys(args)
    states, correct, finish = stream.blocks
    ends = finish.params[: len(finish.params) - len(args)]
    params = new_params("p", [a.type for a in kept], ends)
    own = dict(zip(kept, params, strict=True))
    blocks: list[Block] = []
    for block, start in ((states, ()), (finish, ends)):
        done: dict[Node, Node] = {p: p for p in start}
        for old, chain, arg in zip(block.params[len(start) :], chains, args, strict=True):
            made = own[arg]
            for view in reversed(chain):
                made = view.rebuilt((made,))
            done[old] = made
        done = remade(block.results, done)
        blocks.append(remade_block(block, done, [*start, *params]))
    return Node("stream", list(kept), stream.attrs, stream.type, (blocks[0], correct, blocks[1]))


# ---- slices of arguments


def read_parts(block: Block) -> Block:
    """Returns the block with streams that slice their arguments themselves."""
    changed: dict[Node, Node] = {}
    for stream in filter(is_stream, block.nodes):
        chains = [_views_of_part(arg) for arg in stream.args]
        parts = {chain[-1] for chain in chains if chain}
        # if most of an array is read elsewhere, or not at all, the part may be all that is computed
        chains = [chain if chain and _is_most(chain[-1], parts) else [] for chain in chains]
        if any(chains):
            new = _with_views(stream, chains)
            try:
                Tiled(new, 0, 1)
            except RuleError:
                continue  # a part along the streamed axis
            changed[stream] = new
    return replace(block, changed)


def _views_of_part(arg: Node) -> list[Node]:
    """Returns the views from a stream's argument back to the slice that is taken first; empty if
    there is no slice among them."""
    found: list[Node] = []
    while ops.is_view(arg) and not repeats(arg):
        found.append(arg)
        arg = arg.args[0]
    while found and not is_part(found[-1]):
        found.pop()
    return found


def _is_most(part: Node, parts: set[Node]) -> bool:
    """True if `parts`, which are slices, together have at least half of the elements of the array
    that `part` is sliced from."""
    (whole,) = part.args
    sizes = [p.tensor.size for p in parts if p.args[0] is whole]
    total = sum(s for s in sizes if isinstance(s, int))
    return isinstance(whole.tensor.size, int) and 2 * total >= whole.tensor.size


# ---- transposes of results


# a transpose, or a transpose of a reshape, that is the only reader of a result; the order of axes
Transposed = tuple[Node, tuple[int, ...]]


def write_transposed(block: Block) -> Block:
    """Returns the block with streams that transpose their results before writing them."""
    graph = Graph(block)
    changed: dict[Node, Node] = {}
    for stream in filter(is_stream, block.nodes):
        outs = items_of(stream, graph.users.get(stream, ())) or [stream]
        transposes = {out: found for out in outs if (found := _transpose(graph, out)) is not None}
        if transposes:
            changed.update(_transposed(stream, outs, transposes))
    return replace(block, changed)


def _transpose(graph: Graph, out: Node) -> Transposed | None:
    """Returns the only reader of a result if it is a transpose, perhaps of merged axes."""
    groups: list[tuple[int, ...]] = [(i,) for i in range(out.tensor.rank)]
    node = out
    while node not in graph.results and len(users := graph.users.get(node, [])) == 1:
        (user,) = users
        perm = axis_order(user)
        if perm is not None:
            return user, tuple(i for p in perm for i in groups[p])
        rule = ops.rule_of(user) if is_alias(user) and node is out else None
        if rule is None or any(len(axis.names) != 1 or axis.mark for axis in rule.inputs[0]):
            return None
        place = {axis.names[0]: i for i, axis in enumerate(rule.inputs[0])}
        groups = [tuple(place[n] for n in axis.names) for axis in rule.outputs[0]]
        if sorted(i for g in groups for i in g) != list(range(len(place))):
            return None  # it splits an axis
        node = user
    return None


def _transposed(
    stream: Node, outs: Sequence[Node], transposes: Mapping[Node, Transposed]
) -> dict[Node, Node]:
    """Returns what replaces the results of a stream, and the transposes that read them."""
    states, correct, finish = stream.blocks
    results = list(finish.results)
    for out, (_, order) in transposes.items():
        place = place_of(out)
        results[place] = make("transpose", (results[place],), {"perm": order})
    ending = Block(finish.params, results, finish.names, finish.locs)
    type_ = result_type(ending.type)
    new = Node("stream", stream.args, stream.attrs, type_, (states, correct, ending))
    changed: dict[Node, Node] = {}
    for out in outs:
        made = make("item", (new,), dict(out.attrs)) if is_item(out) else new
        if out not in transposes:
            changed[out] = made
            continue
        reader, _ = transposes[out]
        if made.shape != reader.shape:
            made = make("reshape", (made,), hint=reader.tensor)
        changed[reader] = made
    return changed


# ---- transposed copies of operands on a CPU


def transpose_operands(block: Block, log: Log) -> Block:
    """Returns the block with streams and matmuls that read such operands from a copy, if that costs
    less."""
    changed: dict[Node, Node] = {}
    for node in block.nodes:
        rule, made = "transpose_rows", None
        if is_stream(node):
            rule, made = "transpose_operands", _stream_of_copies(node, log.cpu)
        elif node.op == "dot":
            made = _dot_of_copy(node, log.cpu)
        if made is not None and log.spend(rule):
            changed[node] = made
    return replace(block, changed)


def _stream_of_copies(stream: Node, cpu: Cpu) -> Node | None:
    """Returns the stream on transposed copies of those arguments that are strided along the axis
    that an instruction for dot products contracts, if the copy costs less than transposing in every
    program. Its blocks transpose them back, which costs no copy there. None if there are none."""
    states, _, finish = stream.blocks
    try:
        axes, schedule = stream_axes(stream), CpuStreams(stream, cpu).schedule
    except CannotTile:
        return None
    rows, panel = schedule.block("m"), schedule.block("k")
    count = len(finish.params) - len(stream.args)
    users = [a for b in (states, finish) for n in b.nodes for a in n.args]
    chains: list[list[Node]] = [[] for _ in stream.args]
    for state in filter(is_contraction, states.results):
        side = memory_side(state)
        operand, along = streamed_axes(state)[side]
        last = operand.tensor.rank - 1
        mma = cpu.mma(product_types(state), 1, rows, panel)
        if not is_input(operand) or along == last or mma is None or mma.group == 1:
            continue
        place = states.params.index(operand)
        if sum(u in (operand, finish.params[count + place]) for u in users) > 1:
            continue  # another node reads it in another way
        rule = parse_rule(state.attrs["rule"])
        held = {a.names[0] for a in rule.inputs[side]}
        programs = [
            -(-static(size) // rows) if str(own) == axes.row else static(size)
            for axis, size, own in zip(
                rule.outputs[0], state.shape, axes.states[state], strict=True
            )
            if axis.names[0] not in held
        ]
        size = 2 * static(operand.tensor.bytes)
        if size / cpu.memory_rate + cpu.launch < prod(programs) * size / cpu.cache_rate:
            order = (*(i for i in range(last + 1) if i != along), along)
            copy = make("transpose", (stream.args[place],), {"perm": order})
            chains[place] = [make("transpose", (copy,), {"perm": inverse(order)})]
    return _with_views(stream, chains) if any(chains) else None


def _dot_of_copy(dot: Node, cpu: Cpu) -> Node | None:
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
