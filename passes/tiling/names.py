"""Unique names for the variables and memories of one kernel.

Two variables with the same name and type are the same node. A loop must not reuse the name of an
enclosing loop's variable. So code that adds a loop or memory to a kernel takes a name from here.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import count

from stack.ir.equivalence import once_in
from stack.ir.node import Block, unique_name
from stack.ir.traits import is_input


class Names:
    """Generates unique names in a kernel.

    Args:
        taken: names that are in use.
    """

    def __init__(self, taken: Iterable[str] = ()) -> None:
        self._taken = set(taken)
        self._counts: dict[str, int] = {}
        self._numbers = count(1)

    def own(self, hint: str) -> str:
        """Returns the name `hint`, with a suffix if it is in use, and marks it as used."""
        return unique_name(hint, self._taken, self._counts)

    def numbered(self, hint: str) -> str:
        """Returns `hint` with a number that makes it unique; a number that it already has is
        replaced.
        """
        return self.own(f"{hint.split('__')[0]}__{next(self._numbers)}")


def names_of(block: Block) -> Names:
    """Returns the names in use in a kernel's block, as a generator of further unique names."""
    return Names(_names_in(block))


@once_in
def _names_in(block: Block) -> frozenset[str]:
    """Returns the names of variables and memories in a block, and in the blocks in it."""
    nodes = (*block.params, *block.nodes)
    own = [str(n.attrs["name"]) for n in nodes if n.op == "alloc" or is_input(n)]
    return frozenset(own).union(*[_names_in(b) for n in nodes for b in n.blocks])
