"""The table of lowerings that a frontend of a file format fills, one function for each op.

Imports no other room of the frontends, and no framework.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from stack.ir.node import Node

C = TypeVar("C")  # a frontend's record of one op and its operands
F = TypeVar("F", bound=Callable[..., Node | list[Node]])


class LoweringTable(dict[str, Callable[[C], Node | list[Node]]]):
    """Maps the name of an op to the function that builds its values in our IR."""

    def lowers(self, *names: str) -> Callable[[F], F]:
        """Decorator: enters a function for these ops."""

        def enter(function: F) -> F:
            self.update(dict.fromkeys(names, function))
            return function

        return enter


def sizes(node: Node) -> tuple[int, ...]:
    """Returns the shape of a value; sizes of imported files are numbers."""
    return tuple(int(s) for s in node.shape)  # pyright: ignore[reportArgumentType]
