"""Matmuls of signed integers by instructions whose left operand is unsigned.

An offset of half the range makes the elements of the left operand unsigned. This adds the offset
times the sum of each column of the right operand. That is the dot of a row of zeros with the same
offset, so it is computed once for all rows and subtracted.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from stack.ir.builder import Builder, constant
from stack.ir.node import Node
from stack.ir.types import DTYPES, DType, TensorType

WIDE = DTYPES["i16"]  # type of elements with the offset


def raised(b: Builder, block: Node, by: int) -> Node:
    """Adds the offset `by` to all elements of a block of narrow signed integers, so that they
    become unsigned.
    """
    return b.add(widened(b, block), by)


def widened(b: Builder, block: Node) -> Node:
    """Converts a block of narrow signed integers to the type that their sum with the offset has."""
    return b.cast(block, type=block.tensor.with_dtype(WIDE))


def zeros(b: Builder, dtype: DType, shape: Sequence[int]) -> Node:
    """Allocates local memory of a shape, fills it with zeros, and loads it as a block."""
    size = math.prod(shape)
    memory = b.alloc(name="zeros", type=TensorType(dtype, (size,), "local"))
    line = TensorType(dtype, (size,), "tile")
    memory = b.store(memory, b.broadcast(constant(0, dtype), axes=(), type=line), 0)
    block = b.load(memory, 0, type=line)
    return b.reshape(block, type=line.with_shape(tuple(shape)))


def lowered(b: Builder, product: Node, offsets: Node) -> Node:
    """Corrects a dot whose left operand was made unsigned by an offset: subtracts `offsets`, the
    row that the offset has added to each column.
    """
    row = b.reshape(offsets, type=offsets.tensor.with_shape(offsets.shape[1:]))
    return b.sub(product, b.broadcast(row, axes=(1,), type=product.tensor))
