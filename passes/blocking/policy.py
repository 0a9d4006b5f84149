"""How the kernels of a target cut an axis into blocks, and read blocks of memory."""

from __future__ import annotations

from dataclasses import dataclass

from stack.ir.types import I64, DType


@dataclass(frozen=True)
class BlockPolicy:
    """What the tiles of a kernel may be.

    Attributes:
        is_exact: tiles have elements that exist: a whole axis, or blocks of which the last starts
            early. Else a tile is a power of two, and masked past the end of its axis.
        is_line: a tile has one axis, and a block of memory lies along the last axis of that.
        masks_blocks: a block may be read under a mask; else its elements are, one by one.
        integer: of indices; None: 32 bits where no array needs more.
    """

    is_exact: bool
    is_line: bool
    masks_blocks: bool
    integer: DType | None = None


# tiles of Triton: tensors over threads, whose extents are powers of two
MASKED = BlockPolicy(is_exact=False, is_line=False, masks_blocks=False)
# tiles that loops cut into vectors: any extent, along lines of memory
EXACT = BlockPolicy(is_exact=True, is_line=True, masks_blocks=True, integer=I64)
