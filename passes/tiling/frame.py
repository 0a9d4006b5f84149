"""What all tilers ask: sizes as numbers, the types that kernels compute in, and how they refuse."""

from __future__ import annotations

from stack.ir.algebra import COMBINE as COMBINE
from stack.ir.dim import Dim, Expr
from stack.ir.types import F32, DType


def power_of_two(size: int) -> int:
    """The smallest power of two that is not below `size`."""
    return 1 << max(0, (size - 1).bit_length())


class CannotTile(Exception):
    """A group that this pass has no schedule for; says why."""


def wide(dtype: DType) -> DType:
    """The type that a kernel computes in."""
    return F32 if dtype.kind == "f" and dtype.bits == 16 else dtype


def static(dim: Dim) -> int:
    """A size as a number."""
    if isinstance(dim, Expr):
        raise CannotTile(f"size {dim} is symbolic; bind it first")
    return dim
