"""Names of the variables and memories of one kernel, each given once.

Two variables of one name and type are one node, and a loop may not name its variable like one
around it. So whatever adds a loop or memory to a kernel asks here for a name.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import count

from stack.ir.names import unique_name
from stack.ir.node import Block, walk
from stack.ir.traits import is_input


class Names:
    """Gives names that no other value of a kernel has.

    Args:
        taken: names that are in use.
    """

    def __init__(self, taken: Iterable[str] = ()) -> None:
        self._taken = set(taken)
        self._counts: dict[str, int] = {}
        self._numbers = count(1)

    def own(self, hint: str) -> str:
        """The hint, or where that is in use, one like it."""
        return unique_name(hint, self._taken, self._counts)

    def numbered(self, hint: str) -> str:
        """The hint with a number of its own, in place of the number that it came with."""
        return self.own(f"{hint.split('__')[0]}__{next(self._numbers)}")


def names_of(block: Block) -> Names:
    """The names for what is added to a kernel, of its block."""
    named = (n for _, n in walk(block) if is_input(n) or n.op == "alloc")
    return Names(str(n.attrs["name"]) for n in named)
