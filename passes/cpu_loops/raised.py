"""Products of signed numbers by instructions that take one operand as unsigned.

Its elements are raised by half of what they hold, which adds as many times the sum of each column
of the other operand: the product of raised zeros. It is the same for all rows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from stack.ir.builder import Builder, constant
from stack.ir.node import Node
from stack.ir.types import DTYPES, DType, TensorType

WIDE = DTYPES["i16"]  # holds what is raised


def raised(b: Builder, block: Node, by: int) -> Node:
    """A block of short integers, `by` larger."""
    return b.add(widened(b, block), by)


def widened(b: Builder, block: Node) -> Node:
    """A block of short integers, as what is raised can be multiplied with."""
    return b.cast(block, type=block.tensor.with_dtype(WIDE))


def zeros(b: Builder, dtype: DType, shape: Sequence[int]) -> Node:
    """A block of zeros, in local memory."""
    size = math.prod(shape)
    memory = b.alloc(name="zeros", type=TensorType(dtype, (size,), "local"))
    line = TensorType(dtype, (size,), "tile")
    memory = b.store(memory, b.broadcast(constant(0, dtype), axes=(), type=line), 0)
    block = b.load(memory, 0, type=line)
    return b.reshape(block, type=line.with_shape(tuple(shape)))


def lowered(b: Builder, product: Node, offsets: Node) -> Node:
    """A product without what raising its rows has added to each column, a row."""
    row = b.reshape(offsets, type=offsets.tensor.with_shape(offsets.shape[1:]))
    return b.sub(product, b.broadcast(row, axes=(1,), type=product.tensor))
