"""round_operands: round operands of TF32 matmuls before the kernels that multiply them.

Tensor cores truncate f32 to TF32, so kernels round operands to nearest first. Operands that are
rounded in the loop of a matmul pass through registers, at half the rate of operands that tensor
cores read from shared memory. Rounded beforehand, an operand that a kernel computes costs nothing:
the kernel rounds what it writes. Other operands, such as weights, cost a copy.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass, replace

from stack.ir import ops
from stack.ir.builder import Builder, make
from stack.ir.contraction import ROUNDED
from stack.ir.func import Func
from stack.ir.node import Block, Node
from stack.ir.traits import behind, is_contraction, is_control, is_reduction
from stack.ir.types import F32, I32
from stack.passes.gpu_products.tile_choice import best_seconds, may_round, product_of
from stack.passes.k_major import copied, loop_invariants
from stack.passes.tiling.frame import CannotTile
from stack.passes.tiling.single_ops import alone
from stack.rewrite import engine
from stack.rewrite.check import Inexact
from stack.rewrite.log import Log
from stack.rewrite.passes import Pass
from stack.target import Gpu

NEAR = Inexact(error=2.0**-10)  # the matmuls ask for it


@dataclass(frozen=True)
class RoundOperands(Pass, needs=("dot",)):
    """Round operands of matmuls to TF32 beforehand, if the copies cost less than the loop saves."""

    def run(self, func: Func, log: Log) -> Func:
        return Func(func.name, _block(func.body, log, frozenset(), 1), func.level)


def _block(block: Block, log: Log, fixed: Set[Node], trips: int) -> Block:
    """Rounds operands of matmuls in a block that runs `trips` times, and in the blocks of its
    control flow. `fixed`: loop-invariant parameters of the block."""
    changed: dict[Node, Node] = {}
    users: dict[Node, list[Node]] = {}
    for node in block.nodes:
        for arg in node.args:
            users.setdefault(arg, []).append(node)
    rounded: dict[Node, Node] = {}
    for node in block.nodes:
        if is_control(node):
            blocks = [_block(b, log, *loop_invariants(node, b)) for b in node.blocks]
            new = node.rebuilt(blocks=blocks)
            if new is not node:
                changed[node] = new
        if not _rounds(node):
            continue
        copies = [
            a
            for a in dict.fromkeys(node.args)
            if a not in rounded and not _is_free(a, users, block.results)
        ]
        cost = sum(copied(a, fixed, trips, log.gpu) for a in copies)
        if cost < _saved(node, log.gpu) and log.spend("round_operands"):
            log.allow(NEAR)
            for arg in node.args:
                if arg not in rounded:
                    rounded[arg] = round_tf32(arg)
            attrs = {**node.attrs, "precision": ROUNDED}
            args = [rounded[a] for a in node.args]
            changed[node] = make(node.op, args, attrs, hint=node.type)
    return engine.replace(block, changed)


def _rounds(node: Node) -> bool:
    """True for a matmul whose kernel rounds its operands."""
    if not (is_contraction(node) and may_round(node)) or node.attrs["precision"] == ROUNDED:
        return False
    return all(a.dtype == F32 for a in node.args)


def _is_free(x: Node, users: dict[Node, list[Node]], results: Sequence[Node]) -> bool:
    """True if a kernel computes `x`, and only matmuls that round it read it."""
    source, readers = behind(x), users[x]
    while x is not source:
        x = x.args[0]
        if len(users[x]) > 1:
            return False
    is_computed = ops.lookup(source.op).kind == "elementwise" or is_reduction(source)
    is_computed |= is_contraction(source) or source.op == "transpose"
    return is_computed and source not in results and all(map(_rounds, readers))


def _saved(dot: Node, gpu: Gpu) -> float:
    """Estimates the seconds that a matmul saves with rounded operands; 0 if the cost model cannot
    describe the matmul."""
    body = alone(dot).blocks[0]
    try:
        product = product_of(body, [n for n in body.nodes if is_contraction(n)])
    except CannotTile:
        return 0.0
    after = replace(product, rounded=True)
    return best_seconds(product, F32, gpu) - best_seconds(after, F32, gpu)


def round_tf32(x: Node) -> Node:
    """Returns f32 values rounded to TF32: to nearest, ties away from zero, as GPUs do. nan stays,
    whatever its bits are."""
    b = Builder()
    bits = b.bitcast(x, type=x.tensor.with_dtype(I32))
    # TF32 lacks the last 13 bits
    near = b.and_(b.add(bits, 1 << 12), -(1 << 13))
    return b.select(b.eq(x, x), b.bitcast(near, type=x.type), x)
