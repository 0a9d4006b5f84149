"""Helpers of all lowerings to kernels: constant sizes, accumulation types, and `CannotTile`."""

from __future__ import annotations

import math

from stack.ir import ops
from stack.ir.algebra import COMBINE as COMBINE
from stack.ir.dim import Dim, Expr
from stack.ir.node import Node
from stack.ir.traits import converts, is_number, reads_by_data
from stack.ir.types import F32, DType

EXPENSIVE = 8  # scalar operations from which a value is stored rather than recomputed
LOG2E = math.log2(math.e)  # exp(x) is exp2(x * this)


def power_of_two(size: int) -> int:
    """Returns the smallest power of two that is at least `size`."""
    return 1 << max(0, (size - 1).bit_length())


class CannotTile(Exception):
    """Raised if no kernel can be generated for a group; the message says why."""


def wide(dtype: DType) -> DType:
    """Returns the type in which a kernel computes: f32 for 16-bit floats."""
    return F32 if dtype.kind == "f" and dtype.bits == 16 else dtype


def is_rounded(node: Node, dtype: DType) -> bool:
    """True if a value in the type of computations already has the precision of `dtype`: it is a
    number, or was converted from this type. Gathers after the conversion do not matter.
    """
    if wide(dtype) == dtype or is_number(node):
        return True
    while reads_by_data(node):
        node = node.args[0]
    return converts(node) and node.args[0].dtype == dtype


def is_expensive(node: Node) -> bool:
    """True if an elementwise op costs more to recompute than to store and load its result."""
    op = ops.lookup(node.op)
    return op.kind == "elementwise" and op.flops >= EXPENSIVE


def static(dim: Dim) -> int:
    """Returns a size as an integer. Raises CannotTile if it is symbolic, not constant."""
    if isinstance(dim, Expr):
        raise CannotTile(f"size {dim} is symbolic; bind it first")
    return dim
