"""Matches matrix products in loops: vectors over the columns, to which loops add products.

loop(...) {(%i < 8, %o)                           rows, if the loop only stores their sums
  %s = loop(0.0) {(%k < 64, %acc : f32<32>)       the reduction: one loop or several
    add(%acc, mul(load(%p0, %i, %k), load(%p1, %k, 0) : f32<32>))
  store(%o, %s, %i, 0)

One `dot` of two blocks of memory computes the same:

%s = dot(load(%p0, 0, 0) : f32<8x64>, load(%p1, 0, 0) : f32<64x32>) {rule="m k, k n -> m n"}
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from stack.ir.builder import converted, make, reshaped
from stack.ir.equivalence import once_in
from stack.ir.kernel_ops import access_parts
from stack.ir.memory import starts_of
from stack.ir.node import Block, Node
from stack.ir.traits import (
    converts,
    is_load,
    is_loop,
    is_memory,
    is_store,
    multiplies,
    repeats,
    unconverted,
)
from stack.ir.types import holds_all
from stack.passes.steps.access import positions, tile_type
from stack.passes.steps.block_reads import BlockRead, ReadAxis, axis_along
from stack.passes.steps.guard import summand
from stack.passes.steps.loops import is_constant, is_serial
from stack.passes.steps.panels import BlockProduct, read_by
from stack.passes.tiling.frame import static


@dataclass(frozen=True)
class LoopProduct:
    """A matmul that loops of a kernel compute, and the `dot` of blocks that can replace them.

    Attributes:
        loop: the loop that a `dot` replaces: over rows that are stored, or over a reduction axis.
        blocks: the product. Its operands are converted to the type of the sums.
        places: the index of the store in the loop over rows; none without that loop.
    """

    loop: Node
    blocks: BlockProduct
    places: tuple[ReadAxis, ...] = ()

    def replaced(self, is_narrow: bool) -> Node:
        """Builds the replacement of the loop: the `dot`, or the memory after it is stored there.

        `is_narrow`: whether an instruction multiplies operands as they are in memory.
        """
        made = self.blocks.dot
        if is_narrow:
            made = made.rebuilt([unconverted(a) for a in made.args])
        if not self.places:
            return made
        start = self.loop.args[0]
        rows, lanes = map(static, made.shape)
        first = next(i for i, place in enumerate(self.places) if place.over)
        shape = (rows, *[1] * (len(self.places) - first - 2), lanes)
        made = converted(reshaped(made, shape), start.dtype)
        return make("store", (start, made, *(place.start for place in self.places)))


def product_at(whole: Block, loop: Node) -> LoopProduct | None:
    """Recognizes the matmul that a loop computes: over rows that are stored, or over a reduction
    axis. The operand that has the rows comes first.

    Operands are inputs of the kernel with the body `whole`, or local memory. None if the loop does
    something else.
    """
    if not is_serial(loop):
        return None
    found = _stored_product(loop.blocks[0])
    dot, places = found or (_dot(loop, None), ())
    if dot is None:
        return None
    inputs = whole.params[: -len(whole.results)]
    memories = [read_by(operand).args[0] for operand in dot.args]
    if any(m not in inputs and m.tensor.space != "local" for m in memories):
        return None
    return LoopProduct(loop, BlockProduct(dot), places)


@once_in
def _stored_product(rows: Block) -> tuple[Node, tuple[ReadAxis, ...]] | None:
    """Returns the `dot` whose results a loop over rows stores, and the index of the store; None if
    a loop with this body does something else.
    """
    found = _stored_rows(rows)
    dot = _dot(found[0], rows.params[0]) if found is not None else None
    return None if found is None or dot is None else (dot, found[1])


def _stored_rows(block: Block) -> tuple[Node, tuple[ReadAxis, ...]] | None:
    """Recognizes the body of a loop over rows that only stores the results of one inner loop.
    Returns that inner loop and the index of the store; None for other loops.
    """
    var, *held = block.params
    if len(held) != 1 or not is_store(block.results[0]):
        return None
    (store,) = block.results
    index, mask, _ = access_parts(store)
    sums = unconverted(store.args[1])
    if [n for n in block.nodes if is_loop(n)] != [sums] or store.args[0] is not held[0]:
        return None
    if mask is not None or any(place.tensor.rank for place in index):
        return None
    places = [axis_along(place, [var]) for place in index]
    known = tuple(p for p in places if p is not None and p.is_contiguous)
    moved = [i for i, place in enumerate(known) if place.over]
    is_block = len(known) == len(places) and len(moved) == 1 and moved[0] < len(known) - 1
    return (sums, known) if is_block else None


def _dot(loop: Node, row: Node | None) -> Node | None:
    """Builds the `dot` of blocks whose products a loop over a reduction axis adds up; None if the
    loop computes something else. `row`: the variable of the loop over rows around it, if there is
    one. The operand with the rows comes first.
    """
    depth, product = _summed(loop)
    if product is None:
        return None
    (lanes,) = map(static, product.shape)
    lane = positions(depth[0].dtype, lanes)
    result = {lane: "n"} if row is None else {row: "m", lane: "n"}
    names = {**result, **{v: f"k{i or ''}" for i, v in enumerate(depth)}}
    first, second = (_read(factor, names, depth, lane) for factor in product.args)
    if first is None or second is None:
        return None
    if row in second.over:
        first, second = second, first
    both = first.over & second.over
    if both - {lane} != {*depth} or first.over | second.over != {*names}:
        return None
    if lane in both and not (row in first.over and lane in first.axes[-1].over):
        return None  # a product for each lane: lanes of the operand with the rows are contiguous
    if lane not in both and row in first.over and lane in first.over:
        return None  # no axis of its own: the other operand is a number for each step of the sum
    sizes = {v: lanes if v is lane else static(v.attrs["extent"]) for v in names}
    blocks: list[Node] = []
    sides: list[str] = []
    for read, unit in ((first, "a"), (second, "b")):
        block, over = read.loaded(sizes)
        blocks.append(converted(block, product.dtype))
        own = [names[v] if v is not None else f"{unit}{i}" for i, v in enumerate(over)]
        sides.append(" ".join(own))
    rule = f"{', '.join(sides)} -> {' '.join(result.values())}"
    hint = tile_type(product.dtype, [sizes[v] for v in result])
    return make("dot", blocks, {"rule": rule}, hint=hint)


def _summed(loop: Node) -> tuple[list[Node], Node | None]:
    """Returns the variables of nested reduction loops, and the product that they add to a vector of
    sums from 0 on. None in place of the product if the loops do something else."""
    depth: list[Node] = []
    while True:
        block = loop.blocks[0]
        var, *held = block.params
        if not is_serial(loop) or len(held) != 1 or is_memory(held[0]):
            return depth, None
        if not depth and not is_constant(starts_of(loop)[0], 0):
            return depth, None
        depth.append(var)
        (result,) = block.results
        if not is_loop(result) or tuple(starts_of(result)) != tuple(held):
            break
        loop = result
    part = summand(held[0], result) if result.op == "add" else None
    is_product = part is not None and multiplies(part) and part.tensor.rank == 1
    return depth, part if is_product else None


def _read(
    factor: Node,
    variables: Collection[Node],
    depth: Collection[Node],
    lane: Node,
) -> BlockRead | None:
    """Returns the block of memory that a factor of a product is loaded from, over all values of the
    loop variables; None if it is not such a load.
    """
    value = factor
    while repeats(value) or (converts(value) and holds_all(value.dtype, value.args[0].dtype)):
        (value,) = value.args
    if not is_load(value):
        return None
    index, mask, _ = access_parts(value)
    if mask is not None or not index:
        return None
    if value.tensor.rank and not any(place.tensor.rank for place in index):
        index = [*index[:-1], make("add", (index[-1], lane))]  # a contiguous vector
    axes = [axis_along(place, variables, depth) for place in index]
    known = tuple(axis for axis in axes if axis is not None)
    is_block = len(known) == len(axes) and any(axis.over for axis in known)
    return BlockRead(value.args[0], known) if is_block else None
