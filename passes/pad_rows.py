"""pad_rows: copy matmul operands whose rows are not multiples of 16 bytes, with padding.

16-bit elements reach shared memory in words, by asynchronous or bulk copies. Unaligned rows are
read element by element: a matmul then takes many times as long as a copy with longer rows. The
reader slices the padding off again, which costs nothing.

On a CPU, matmuls of narrow types are padded with zeros, so that a matrix instruction divides their
extents. Such an instruction multiplies groups of neighbours along the contracted axis, for one
vector of columns. Zeros at the end of the contracted axis add nothing. Columns of zeros are sliced
off again. Padding copies narrow operands; otherwise they would be widened, or a library would be
called. If the last contracted axis is only one group long, such as the taps of a window, the rows
are transposed so that a longer axis is last.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from stack.ir.builder import Builder, make, padded, param, sliced
from stack.ir.contraction import product_types
from stack.ir.func import Func
from stack.ir.node import Block, Node
from stack.ir.traits import contractions, in_windows, is_generated
from stack.ir.warp_ops import VECTOR_BYTES
from stack.passes.cpu_products.gemm import is_row_of_sums, mma_of
from stack.passes.gpu_products.tile_choice import best_seconds, product_of
from stack.passes.rules.dot_layout import dot_axes, make_dot
from stack.passes.rules.transposes import transposed
from stack.passes.tiling.contraction import Roles, operand_names, roles_of
from stack.passes.tiling.frame import CannotTile
from stack.passes.tiling.single_ops import group_of
from stack.rewrite.engine import Scope, Simple, inline_block, replace, rewrite
from stack.rewrite.log import Log
from stack.rewrite.passes import BlockPass
from stack.target import Cpu, Gpu, Mma


@dataclass(frozen=True)
class PadRows(BlockPass, needs=("dot",)):
    """Copy operands of matmuls to rows of whole words, if that takes less time than it saves.

    A group that reads a copy names the operand in `padded`: past the sliced part there are zeros.
    """

    def run(self, func: Func, log: Log) -> Func:
        if isinstance(log.target, Cpu):
            return rewrite(func, [Simple("whole_product", ("dot",), whole_product)], log)
        return super().run(func, log)

    def change(self, block: Block, log: Log) -> Block:
        changed: dict[Node, Node] = {}
        readers = [(node, _ragged(node)) for node in block.nodes]
        copies: dict[Node, Node] = {}
        for arg in dict.fromkeys(n.args[i] for n, places in readers for i in places):
            saved = sum(
                _lost(n, log.gpu) for n, places in readers if arg in [n.args[i] for i in places]
            )
            name = block.names.get(arg, arg.op)
            log.note(f"%{name}: matmuls lose {saved * 1e6:.0f} us by its rows")
            if saved > _copied(arg, log.gpu) and log.spend("pad_rows", block.locs.get(arg, ())):
                copies[arg] = _padded(arg)
        for node, places in readers:
            padded = [i for i in places if node.args[i] in copies]
            if padded:
                changed[node] = _reading(node, padded, copies)
        return replace(block, changed)


def _ragged(node: Node) -> list[int]:
    """Returns the numbers of a matmul group's operands whose rows are not multiples of 16 bytes;
    empty if the node is not a group with exactly one matmul."""
    group = group_of(node)
    dots = contractions(group.blocks[0].nodes) if is_generated(group) else []
    if len(dots) != 1:
        return []
    body = group.blocks[0]
    return [i for i, p in enumerate(body.params) if p in dots[0].args and _is_ragged(p)]


def _is_ragged(x: Node) -> bool:
    row = x.shape[-1] if x.tensor.rank > 1 else 0
    return isinstance(row, int) and x.dtype.bits == 16 and bool(row * x.dtype.bytes % VECTOR_BYTES)


def _lost(node: Node, gpu: Gpu) -> float:
    """Estimates the seconds that the matmul of a group takes longer because unaligned rows are read
    element by element; 0 if the cost model cannot tile it."""
    body = group_of(node).blocks[0]
    (dot,) = contractions(body.nodes)
    try:
        expected = best_seconds(product_of(body, [dot]), dot.args[0].dtype, gpu)
    except CannotTile:
        return 0.0
    return max(0.0, expected - gpu.launch - gpu.latency) * (1 / gpu.element_share - 1)


def _copied(x: Node, gpu: Gpu) -> float:
    size: Any = x.tensor.bytes
    return gpu.launch + 2 * size / gpu.memory_rate


def _padded(x: Node) -> Node:
    """Returns a group that copies an array and pads its last axis with zeros, to a multiple of a
    vector."""
    row: Any = x.shape[-1]
    none = (0,) * x.tensor.rank
    inner = param("p0", x.type)
    made = padded(inner, none, (*none[1:], -row % (VECTOR_BYTES // x.dtype.bytes)))
    return make("fusion", (x,), {"kind": "loop", "name": "pad"}, (Block((inner,), [made]),))


def _reading(node: Node, padded: Sequence[int], copies: dict[Node, Node]) -> Node:
    """Returns a matmul group that reads padded copies of the operands numbered in `padded`, and
    slices the padding off again."""
    group = group_of(node)
    body = group.blocks[0]
    args, params, values = list(group.args), list(body.params), list(body.params)
    b = Builder()
    for i in padded:
        shape = body.params[i].shape
        args[i] = copies[group.args[i]]
        params[i] = param(str(body.params[i].attrs["name"]), args[i].type)
        values[i] = sliced(params[i], (0,) * len(shape), shape)
    results = inline_block(body, values, b)
    attrs = {**group.attrs, "padded": tuple(padded)}
    return make("fusion", args, attrs, (b.block(params, results),))


def whole_product(node: Node, op: Builder, scope: Scope) -> Node | None:
    """Pads the operands of a matmul with zeros so that a matrix instruction divides its extents,
    and slices the result back; None if the matmul needs or allows no padding.
    """
    cpu = scope.log.cpu
    known = cpu.mmas(product_types(node))
    if not known or any(map(in_windows, node.args)):
        return None
    try:
        made = _wider(node, known[-1], cpu)
    except CannotTile:
        return None
    return sliced(made, (0,) * node.tensor.rank, node.shape) if made is not None else None


def _wider(dot: Node, mma: Mma, cpu: Cpu) -> Node | None:
    """Returns the matmul padded with zeros, so that instruction `mma` divides its extents, or with
    transposed rows as `_along_deepest` returns it. None if it needs no padding, or if no
    instruction fits the padded matmul. Raises CannotTile as `roles_of`."""
    if is_row_of_sums(dot) or mma_of(dot, cpu) is not None:
        return None
    roles = roles_of(dot, by_lane=True)
    depth = operand_names(dot, roles.left)[-1]
    if roles.is_by_lane or depth not in roles.contracted:
        return None
    deep = max(roles.sizes[depth], mma.group + 1)
    more = {
        depth: deep - roles.sizes[depth] + -deep % mma.depth,
        roles.lane: max(0, mma.lanes - roles.sizes[roles.lane]),
    }
    if roles.sizes[depth] <= mma.group and (turned := _along_deepest(dot, roles, depth)):
        return turned
    inputs, output = dot_axes(dot)
    args = [
        padded(a, (0,) * len(names), [more.get(n, 0) for n in names])
        for a, names in zip(dot.args, inputs, strict=True)
    ]
    made = make_dot(args, inputs, output, dot)
    return made if any(more.values()) and mma_of(made, cpu) is not None else None


def _along_deepest(dot: Node, roles: Roles, depth: str) -> Node | None:
    """Returns the dot with its left operand transposed, so that the longest contracted axis is
    last. None if the axis `depth`, which is last now, is as long."""
    deepest = max(roles.contracted, key=lambda n: roles.sizes[n])
    if roles.sizes[deepest] == roles.sizes[depth]:
        return None
    args, (inputs, output) = list(dot.args), dot_axes(dot)
    own = inputs[roles.left]
    inputs[roles.left] = order = [*(n for n in own if n != deepest), deepest]
    args[roles.left] = transposed(args[roles.left], [own.index(n) for n in order])
    return make_dot(args, inputs, output, dot)
