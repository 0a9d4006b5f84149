"""Results of walks through a block that are valid again for other sets of excluded nodes."""

from __future__ import annotations

from collections.abc import Set
from typing import Generic, Protocol, TypeVar

from stack.ir.node import Node


class Walked(Protocol):
    """The result of a walk, with the nodes that it asked about: are they held, or outside?"""

    @property
    def met(self) -> Set[Node]: ...


Found = TypeVar("Found", bound=Walked)


class Walks(Generic[Found]):
    """Results of walks, by where they started.

    A walk for other sets of held nodes and of nodes outside finds the same if the nodes that it met
    are in the same of these sets.
    """

    def __init__(self) -> None:
        self._known: dict[object, list[tuple[Set[Node], Set[Node], Found]]] = {}

    def find(self, start: object, held: Set[Node], outside: Set[Node]) -> Found | None:
        """Returns the result of a walk; None if no walk before was the same."""
        for own, other, found in self._known.get(start, ()):
            if found.met & held == own and found.met & outside == other:
                return found
        return None

    def keep(self, start: object, held: Set[Node], outside: Set[Node], found: Found) -> None:
        """Adds the result of a walk."""
        known = self._known.setdefault(start, [])
        known.append((found.met & held, found.met & outside, found))
