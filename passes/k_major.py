"""k_major: transpose operands of matmuls so that the contracted axes have unit stride.

Tensor cores read TF32 from shared memory along the contracted axis only. Other layouts go through
registers, at a quarter of the rate. A transposed copy costs its bytes. In a counted loop, an
operand that no iteration changes is transposed once (`hoist`).

A matmul over several axes, such as a convolution whose windows do not overlap, loops over them in
one order. If the operands have different ones, the smaller operand is copied in the order of the
larger one: a weight instead of an image, which a library would copy.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass, replace
from itertools import takewhile
from math import prod
from typing import Any

from stack.ir.builder import make
from stack.ir.func import Func
from stack.ir.node import Block, Node, topological
from stack.ir.traits import contractions, is_contraction, is_control, is_known
from stack.ir.warp_ops import MATRIX
from stack.passes.gpu_products.tile_choice import (
    best_seconds,
    copy_seconds,
    lying_across,
    may_round,
    product_of,
)
from stack.passes.rules.dot_layout import dot_axes, make_dot
from stack.passes.tiling.frame import CannotTile, static
from stack.passes.tiling.single_ops import alone
from stack.rewrite import engine
from stack.rewrite.log import Log
from stack.rewrite.passes import Pass
from stack.target import Gpu


@dataclass(frozen=True)
class KMajor(Pass, needs=("dot",)):
    """Transpose operands of matmuls that may use TF32 or contract several axes, if the copy costs
    less than it saves."""

    def run(self, func: Func, log: Log) -> Func:
        return Func(func.name, self._block(func.body, log, frozenset(), 1), func.level)

    def _block(self, block: Block, log: Log, fixed: Set[Node], turns: int) -> Block:
        """Transposes operands of matmuls in a block that runs `turns` times, and in the blocks of
        its control flow. `fixed`: parameters of the block that are the same in all runs."""
        changed: dict[Node, Node] = {}
        for node in block.nodes:
            if is_control(node):
                blocks = [self._block(b, log, *loop_invariants(node, b)) for b in node.blocks]
                new = node.rebuilt(blocks=blocks)
                if new is not node:
                    changed[node] = new
            if not is_contraction(node):
                continue
            side = _out_of_order(node)
            if side is not None:
                cost = copied(node.args[side], fixed, turns, log.gpu)
                if cost < copy_seconds(node, log.gpu) and log.spend("k_major"):
                    changed[node] = _in_order(node, side)
                continue
            if not may_round(node):
                continue
            sides = lying_across(node)
            cost = sum(copied(node.args[i], fixed, turns, log.gpu) for i in sides)
            if sides and cost < _saved(node, log.gpu) and log.spend("k_major"):
                changed[node] = _turned(node, sides)
        return engine.replace(block, changed)


def loop_invariants(node: Node, block: Block) -> tuple[Set[Node], int]:
    """Returns for `block`, which is a block of the control flow `node`, its loop-invariant
    parameters, and how often it runs. Only the body of a loop with a known trip count has
    either."""
    count = node.attrs.get("trip_count")
    if not count or block is not node.blocks[1]:
        return frozenset(), 1
    return {p for p, r in zip(block.params, block.results, strict=True) if p is r}, int(count)


def copied(x: Node, fixed: Set[Node], turns: int, gpu: Gpu) -> float:
    """Estimates the seconds per iteration that a transposed copy of `x` takes.

    If `x` depends only on loop-invariant values (`fixed`), one copy serves all `turns` iterations.
    """
    size: Any = x.tensor.bytes
    if all(n in fixed or is_known(n) for n in topological([x]) if not n.args):
        size, launch = size / turns, gpu.launch / turns
    else:
        launch = gpu.launch
    return launch + 2 * size / gpu.memory_rate


def _saved(dot: Node, gpu: Gpu) -> float:
    """Estimates the seconds that a matmul saves if both operands are contiguous along the
    contracted axis; 0 if the cost model cannot describe the matmul."""
    body = alone(dot).blocks[0]
    try:
        product = product_of(body, contractions(body.nodes))
    except CannotTile:
        return 0.0
    dtype = dot.args[0].dtype
    along = replace(product, across=False)
    return best_seconds(product, dtype, gpu) - best_seconds(along, dtype, gpu)


def _out_of_order(dot: Node) -> int | None:
    """Returns the number of the smaller operand of a matmul over several axes if it has them in
    another order than the larger one; None for other matmuls.

    It is also None if no run of the larger operand fills a tile of tensor cores.
    """
    inputs, output = dot_axes(dot)
    sizes = [dict(zip(names, a.shape, strict=True)) for names, a in zip(inputs, dot.args)]
    if not all(isinstance(s, int) for own in sizes for s in own.values()):
        return None
    summed = [[n for n in own if n not in output and own[n] != 1] for own in sizes]
    if summed[0] == summed[1] or set(summed[0]) != set(summed[1]):
        return None
    small = int(static(dot.args[1].tensor.size) < static(dot.args[0].tensor.size))
    names, own = inputs[1 - small], sizes[1 - small]
    run = prod(static(own[n]) for n in takewhile(lambda n: n not in output, reversed(names)))
    return small if run >= MATRIX else None


def _in_order(dot: Node, side: int) -> Node:
    """Returns the matmul with an operand transposed, so that its contracted axes are last, in the
    order of the other operand."""
    inputs, output = dot_axes(dot)
    kept = [n for n in inputs[side] if n in output]
    return _transposed(dot, side, [*kept, *(n for n in inputs[1 - side] if n not in output)])


def _turned(dot: Node, sides: Sequence[int]) -> Node:
    """Returns the matmul with the operands numbered in `sides` transposed, so that their contracted
    axis is last."""
    for i in sides:
        names, output = dot_axes(dot)[0][i], dot_axes(dot)[1]
        last = [n for n in names if n not in output]
        dot = _transposed(dot, i, [*(n for n in names if n in output), *last])
    return dot


def _transposed(dot: Node, side: int, names: Sequence[str]) -> Node:
    """Returns the matmul with an operand whose axes are in the order of `names`."""
    inputs, output = dot_axes(dot)
    args = list(dot.args)
    perm = tuple(inputs[side].index(n) for n in names)
    args[side] = make("transpose", (args[side],), {"perm": perm})
    inputs[side] = [*names]
    return make_dot(args, inputs, output, dot)
