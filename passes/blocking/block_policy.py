"""How the kernels of a target cut an axis into blocks, and read blocks of memory."""

from __future__ import annotations

from dataclasses import dataclass

from stack.ir.types import I64, DType


@dataclass(frozen=True)
class BlockPolicy:
    """What the tiles of a kernel may be.

    Attributes:
        is_line: a tile has one axis; a block of memory lies along the last axis of that, and may
            be read under a mask. Else a tile has any axes, and what has a mask is read one by one.
        integer: of indices; None: 32 bits where no array needs more.
    """

    is_line: bool
    integer: DType | None = None


# powers of two, masked past the end of an axis: what Triton shares out among threads
MASKED = BlockPolicy(is_line=False)
# a whole axis, or blocks of which the last starts early: what loops cut into vectors
EXACT = BlockPolicy(is_line=True, integer=I64)
