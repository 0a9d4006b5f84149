"""The part of a distributed tile in each thread's registers, and the text of an element."""

from __future__ import annotations

import math
import re

from stack.ir.node import Node
from stack.ir.types import TensorType


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
