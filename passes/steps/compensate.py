"""compensate: multiply signed integers by an instruction whose operand of rows is unsigned.

    %d = dot(%a, %b)      compensate vpdpbusd    %o = dot(add(zeros, 128), %b) : i32<1x64>
      : i32<6x64>                                %d = sub(dot(add(%a, 128), %b), broadcast(%o))

An offset of half the range makes the rows unsigned. That adds the offset times the sum of each
column. This is the product of a row of zeros with the same offset: computed once for all tiles of
rows of a panel, and subtracted. Legal for one `dot` of blocks of the types of the instruction.
Without this step, each tile computes one more row. CPUs only.

Source: the compensation of signed rows in oneDNN (developer guide, "Nuances of int8 computations").
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

from stack.ir.builder import Builder, constant, converted
from stack.ir.contraction import product_types
from stack.ir.node import Node
from stack.ir.types import DTYPES, TensorType
from stack.passes.steps.edit import Edit
from stack.passes.steps.panels import BlockProduct, block_products
from stack.passes.steps.step import Step
from stack.passes.tiling.contraction import result_names
from stack.passes.tiling.frame import static
from stack.target import Cpu, Target
from stack.target.mma import MMAS

OFFSETS = {mma.name: mma for mma in MMAS if mma.offset}
WIDE = DTYPES["i16"]  # type of elements with the offset
ROW = "row"  # the axis of one row of zeros


@dataclass(frozen=True)
class Compensate(Step, name="compensate", only=Cpu):
    """Make the rows of an integer matrix product unsigned.

    Attributes:
        instruction: the instruction that multiplies unsigned by signed numbers.
    """

    instruction: str

    def broken(self, kernel: Node, target: Target | None) -> Iterator[str]:
        found = [*block_products(kernel)]
        mma = OFFSETS.get(self.instruction)
        if mma is None:
            yield f"{self.instruction} takes no unsigned rows, as {', '.join(OFFSETS)}"
        elif len(found) != 1:
            yield f"{len(found)} matrix products of blocks, not one"
        elif (types := product_types(found[0].dot)) != mma.types:
            yield f"{mma.name} does not multiply {types[0]} by {types[1]}"
        elif isinstance(target, Cpu) and mma not in target.mmas(mma.types):
            yield f"{target.name} has no {mma.name}"

    def apply(self, kernel: Node) -> Node:
        edit = Edit(kernel)
        (product,) = block_products(kernel)
        made = _compensated(product, OFFSETS[self.instruction].offset)
        return edit.mapped(lambda n: made if n is product.dot else None)


def _compensated(product: BlockProduct, offset: int) -> Node:
    """Builds the product of rows with the offset, minus what the offset adds."""
    b, dot, lane = Builder(), product.dot, product.lane
    names = [n for n in product.panel_names if n != lane]
    shape = 1, *(product.sizes[n] for n in names)
    (start,) = product.corner(1)
    row = _zeros(b, product.rows.tensor.with_shape(shape), start)
    rule = f"{ROW} {' '.join(names)}, {' '.join(product.panel_names)} -> {ROW} {lane}"
    hint = dot.tensor.with_shape((1, product.sizes[lane]))
    more = b.op(
        "dot",
        [b.add(converted(row, WIDE), offset), converted(product.panel, WIDE)],
        {"rule": rule},
        hint=hint,
    )
    panel = converted(dot.args[product.side], WIDE)
    made = product.rebuilt(b.add(converted(product.rows, WIDE), offset), panel)
    offsets = b.reshape(more, type=hint.with_shape((product.sizes[lane],)))
    if len(result_names(dot)) > 1:
        offsets = b.broadcast(offsets, axes=(1,), type=dot.type)
    return b.sub(made, offsets)


def _zeros(b: Builder, like: TensorType, start: Node) -> Node:
    """Allocates local memory of zeros, and loads it as a block. `start`: the index 0."""
    size = prod(map(static, like.shape))
    memory = b.alloc(name="zeros", type=TensorType(like.dtype, (size,), "local"))
    line = TensorType(like.dtype, (size,), "tile")
    memory = b.store(memory, b.broadcast(constant(0, like.dtype), axes=(), type=line), start)
    return b.reshape(b.load(memory, start, type=line), type=like)
