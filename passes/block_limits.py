"""Which steps of a stream a comparison of positions leaves, and where it holds throughout.

A condition that is affine in the positions, such as i >= j, hides whole tiles on one side of a
line. With the fill of the hidden side the identity of what is reduced, those tiles add nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from stack.ir.axes import Index
from stack.ir.node import Node

if TYPE_CHECKING:
    from stack.passes.block_stream import StreamTiler


@dataclass(frozen=True)
class Segment:
    """A run of steps.

    Attributes:
        limits: the first step and the one past the last; None for all of them.
        fixed: selects whose condition is known there, with the operand that they give.
    """

    limits: tuple[Node, Node] | None = None
    fixed: Mapping[Node, Node] = field(default_factory=dict[Node, Node])


def segments(tiler: StreamTiler, at: Mapping[Node, Index], block: int, count: int) -> list[Segment]:
    """The loops of a stream, in order."""
    return [Segment()]
