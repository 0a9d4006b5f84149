"""Answers of a rule that may refuse: `Ok`, or a reason that names the offending value."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from stack.ir.node import Node


@dataclass(frozen=True)
class Yes:
    """The type of `Ok`."""

    def __bool__(self) -> bool:
        return True


Ok: Final = Yes()


@dataclass(frozen=True)
class Why:
    """Why a rule that nearly applies does not, and the value that it is about. Counts as False."""

    reason: str
    node: Node | None = None

    def __bool__(self) -> bool:
        return False


NOT_MINE: Final = Why("another rule's business")
"""What a fusion rule answers for a pair that it does not deal with; never shown as a reason."""
