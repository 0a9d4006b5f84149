"""A printed kernel and its launch parameters, the C++ text of its values, and the part of a
distributed tile in each thread's registers.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field

from stack.ir.node import Node
from stack.ir.types import TensorType
from stack.ir.warp_ops import WARP


@dataclass(frozen=True)
class Source:
    """A kernel as CUDA C++, with its launch parameters.

    Attributes:
        text: prelude and kernel.
        blocks: size of the grid.
        warps: warps per block.
        shared: bytes of dynamic shared memory, requested at launch.
        static_shared: bytes of shared memory that the text declares.
        origins: the source line of each line of the text; "" for a line without one.
    """

    name: str
    text: str
    blocks: int
    warps: int
    shared: int
    static_shared: int
    origins: tuple[str, ...] = field(default=(), compare=False)

    @property
    def threads(self) -> int:
        return WARP * self.warps


@dataclass(frozen=True)
class CudaValue:
    """A value in C++: a scalar in each thread, or `count` registers per thread.

    `each`: the text of element `i` of a value without registers, because they would only repeat or
    reorder those of others; "" for a value with registers.
    """

    text: str
    count: int = 0
    each: str = ""

    @property
    def element(self) -> str:
        """The text of element `i`, for use inside the loop that the macro EACH begins."""
        if self.each:
            return self.each
        return f"{self.text}[i]" if self.count else self.text


def is_across(node: Node) -> bool:
    """True if a value is distributed over the threads of the block."""
    return isinstance(node.type, TensorType) and node.type.rank >= 2 and node.type.space == "tile"


def registers_of(type_: TensorType) -> list[int]:
    """The extents of one thread's part of a tile."""
    return [int(s) for s in type_.shape[2:]]  # pyright: ignore[reportArgumentType]


def count_of(type_: TensorType) -> int:
    """Registers per thread of a value; 0 for a scalar."""
    count = math.prod(registers_of(type_))
    return count if count > 1 else 0


def at(element: str, index: str) -> str:
    """Returns the text of an element, with its loop index `i` replaced by `index`."""
    if index == "i":
        return element
    plain = index if index.isalnum() else f"({index})"
    return re.sub(r"\bi\b", plain, element)
