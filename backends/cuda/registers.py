"""What each thread holds of a tile across the threads, and how an element of it is written."""

from __future__ import annotations

import math
import re

from stack.ir.node import Node
from stack.ir.types import TensorType


def is_across(node: Node) -> bool:
    """Whether a value lies across the threads of the block."""
    return isinstance(node.type, TensorType) and node.type.rank >= 2 and node.type.space == "tile"


def registers_of(type_: TensorType) -> list[int]:
    """The extents of what one thread holds."""
    return [int(s) for s in type_.shape[2:]]  # pyright: ignore[reportArgumentType]


def count_of(type_: TensorType) -> int:
    """Registers of a value in each thread; 0 where that is one scalar."""
    count = math.prod(registers_of(type_))
    return count if count > 1 else 0


def at(element: str, index: str) -> str:
    """The text of an element at another index than i."""
    if index == "i":
        return element
    plain = index if index.isalnum() else f"({index})"
    return re.sub(r"\bi\b", plain, element)
