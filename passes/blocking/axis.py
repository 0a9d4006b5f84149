"""Named axes of a kernel, and the values that have them."""

from __future__ import annotations

from dataclasses import dataclass

from stack.ir.dim import Expr, symbol
from stack.ir.node import Node
from stack.ir.types import DType


@dataclass(frozen=True)
class Axis:
    """One axis of a kernel.

    Attributes:
        name: its symbol in index expressions.
        extent: elements on the whole axis.
        block: elements that a tile holds; 1 for a scalar place.
        start: the first element of the tile, an integer scalar.
        is_aligned: whether that is a multiple of the block.
        overlaps: whether the last block starts early rather than ends late.
    """

    name: str
    extent: int
    block: int
    start: Node
    is_aligned: bool = True
    overlaps: bool = False

    @property
    def is_tile(self) -> bool:
        return self.block > 1

    @property
    def is_covered(self) -> bool:
        """Whether tiles never reach past the end."""
        return self.overlaps or self.extent % self.block == 0

    @property
    def place(self) -> Expr:
        return symbol(self.name, 0, max(self.extent - 1, 0))


@dataclass(frozen=True)
class NamedTile:
    """A value in a kernel: a scalar, or a tile with the names of its axes."""

    node: Node
    axes: tuple[str, ...] = ()

    @property
    def dtype(self) -> DType:
        return self.node.dtype
