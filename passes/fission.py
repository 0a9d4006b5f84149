"""fission: move matmuls out of a loop if they do not depend on earlier iterations.

A loop over the rows of an array, such as time steps, multiplies each row by the same weights. All
rows together are one matmul with full tiles. An iteration then reads its row of the result.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from stack.ir.axes import LETTERS
from stack.ir.builder import make, reshaped
from stack.ir.node import Block, Node
from stack.ir.ops import rule_of
from stack.ir.traits import (
    contractions,
    is_alias,
    is_contraction,
    is_elementwise,
    is_input,
    is_known,
    is_while,
    reads_by_data,
)
from stack.passes.gpu_products.tile_choice import best_seconds, product_of
from stack.passes.hoist import with_values
from stack.passes.rules.dot_layout import dot_axes, make_dot
from stack.passes.rules.transposes import transposed
from stack.passes.tiling.frame import CannotTile
from stack.passes.tiling.single_ops import alone
from stack.passes.trip_counts import counter
from stack.rewrite import engine
from stack.rewrite.engine import Replacement
from stack.rewrite.log import Log
from stack.rewrite.passes import BlockPass
from stack.target import Gpu


@dataclass(frozen=True)
class Fission(BlockPass, needs=("while",)):
    """Compute matmuls of rows for all iterations before the loop, if that takes less time."""

    def change(self, block: Block, log: Log) -> Block:
        moved: dict[Node, Replacement] = {}
        for node in block.nodes:
            count = node.attrs.get("trip_count", 0) if is_while(node) else 0
            place = counter(node) if count > 1 else None
            if place is None:
                continue
            found = _IterationArrays(node, place, count).products(log.gpu)
            if found and log.spend("fission", block.locs.get(node, ())):
                index = node.blocks[1].params[place]
                moved[node] = Replacement(with_values(node, found, partial(_row, index=index)))
        return engine.replace(block, moved) if moved else block


@dataclass
class _IterationArrays:
    """Values of a loop's body for all iterations: arrays whose first axis is the iteration."""

    loop: Node
    place: int  # of the counter
    count: int
    fixed: dict[Node, Node] = field(default_factory=dict[Node, Node])
    rows: dict[Node, Node] = field(default_factory=dict[Node, Node])

    def products(self, gpu: Gpu) -> dict[Node, Node]:
        """Returns the profitable dots, each with the dot for all iterations."""
        body = self.loop.blocks[1]
        slots = zip(body.params, body.results, self.loop.args, strict=True)
        self.fixed = {p: arg for p, result, arg in slots if p is result}
        found: dict[Node, Node] = {}
        for node in body.nodes:
            made = self._of_all(node, body.params[self.place])
            if made is None:
                continue
            self.rows[node] = made
            if is_contraction(node) and _pays(node, made, self.count, gpu):
                found[node] = made
        return found

    def _of_all(self, node: Node, index: Node) -> Node | None:
        if is_input(node) or is_known(node) or node.blocks:
            return None
        if all(a in self.fixed or is_known(a) for a in node.args):
            args = [self.fixed.get(a, a) for a in node.args]
            self.fixed[node] = node.rebuilt(args)
            return None
        if reads_by_data(node):
            return self._rows_read(node, index)
        if not all(a in self.rows or a in self.fixed for a in node.args):
            return None
        if is_alias(node):
            return reshaped(self.rows[node.args[0]], (self.count, *node.shape))
        if is_contraction(node):
            return self._product(node)
        if is_elementwise(node) and len(node.args) == 1:
            (arg,) = (self.rows[a] for a in node.args)
            return Node(node.op, (arg,), node.attrs, arg.tensor.with_dtype(node.dtype))
        return None

    def _rows_read(self, node: Node, index: Node) -> Node | None:
        """Returns the array whose rows the loop reads in order, from the first to the last."""
        if node.args[0] not in self.fixed or node.args[1:] != (index,):
            return None
        rule = rule_of(node)
        assert rule is not None, "a gather has an axis rule"
        operand = rule.inputs[0]
        axis = [a.mark for a in operand].index("!")
        if node.args[0].shape[axis] != self.count:
            return None
        order = [axis, *(i for i in range(len(operand)) if i != axis)]
        if [a.names for a in rule.outputs[0]] != [operand[i].names for i in order[1:]]:
            return None
        return transposed(self.fixed[node.args[0]], order)

    def _product(self, node: Node) -> Node | None:
        inputs, output = dot_axes(node)
        if sum(a in self.rows for a in node.args) != 1:
            return None
        side = 0 if node.args[0] in self.rows else 1
        taken = {n for names in inputs for n in names}
        turn = next(c for c in LETTERS if c not in taken)
        args = [self.rows.get(a) or self.fixed[a] for a in node.args]
        inputs[side] = [turn, *inputs[side]]
        return make_dot(args, inputs, [turn, *output], node)


def _pays(node: Node, made: Node, count: int, gpu: Gpu) -> bool:
    """True if one matmul, written and read again, takes less time than one in each iteration.

    The result for all iterations must fit in the cache, or be no larger than an operand: a small
    gain is not worth any amount of memory.
    """
    size: Any = made.tensor.bytes
    if size > max(gpu.cache_bytes, *(a.tensor.bytes for a in made.args)):  # pyright: ignore
        return False
    body = alone(node).blocks[0]
    try:
        product = product_of(body, contractions(body.nodes))
    except CannotTile:
        return False
    dtype = node.args[0].dtype
    apart = count * (best_seconds(product, dtype, gpu) - gpu.launch)
    together = best_seconds(replace(product, height=product.height * count), dtype, gpu)
    return together + 2 * size / gpu.memory_rate < apart


def _row(values: Node, index: Node) -> Node:
    """Reads the row of one iteration from the values of all iterations."""
    names = LETTERS[: values.tensor.rank - 1]
    rule = f"{' '.join(['x0!', *names])},  -> {' '.join(names)}"
    return make("gather", (values, index), {"rule": rule})
