"""Answers of a rule that may refuse: `Ok`, or a reason that names the offending value."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from stack.ir.node import Node

Reason = Literal["axes", "memory", "cycle", "limit", "idle", "rule"]
REASONS: Final[dict[Reason, str]] = {
    "axes": "their loops have no common space",
    "memory": "one reads from memory what the other makes",
    "cycle": "another path leads from one to the other",
    "limit": "the group would be larger than an option allows",
    "idle": "most of the machine would have nothing to do",
    "rule": "a fusion rule refuses them, or none is about them",
}


@dataclass(frozen=True)
class Yes:
    """The type of `Ok`."""

    def __bool__(self) -> bool:
        return True


Ok: Final = Yes()


@dataclass(frozen=True)
class Why:
    """Why a rule that nearly applies does not, and the value that it is about. Counts as False.

    `kind` is the reason in one word, of the fixed vocabulary `REASONS`.
    """

    reason: str
    node: Node | None = None
    kind: Reason = "rule"

    def __bool__(self) -> bool:
        return False


NOT_MINE: Final = Why("another rule's business")
"""What a fusion rule answers for a pair that it does not deal with; never shown as a reason."""
