"""What all tilers ask: sizes as numbers, the types that kernels compute in, and how they refuse."""

from __future__ import annotations

import math

from stack.ir import ops
from stack.ir.algebra import COMBINE as COMBINE
from stack.ir.dim import Dim, Expr
from stack.ir.node import Node
from stack.ir.types import F32, DType

EXPENSIVE = 8  # scalar operations from which a value is kept rather than computed again
# elements of a line: the most that one program has, else the most of a block
MAX_TILE, SPLIT_TILE = 16384, 4096
LOG2E = math.log2(math.e)  # exp(x) is exp2(x * this)


def power_of_two(size: int) -> int:
    """The smallest power of two that is not below `size`."""
    return 1 << max(0, (size - 1).bit_length())


class CannotTile(Exception):
    """A group that this pass has no schedule for; says why."""


def wide(dtype: DType) -> DType:
    """The type that a kernel computes in."""
    return F32 if dtype.kind == "f" and dtype.bits == 16 else dtype


def is_expensive(node: Node) -> bool:
    """Whether an elementwise op takes more than to keep its result and read it again."""
    op = ops.lookup(node.op)
    return op.kind == "elementwise" and op.flops >= EXPENSIVE


def static(dim: Dim) -> int:
    """A size as a number."""
    if isinstance(dim, Expr):
        raise CannotTile(f"size {dim} is symbolic; bind it first")
    return dim
