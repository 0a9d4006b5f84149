"""Results of a rule: `Ok`, or a reason that names the offending value."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from stack.ir.node import Node

Reason = Literal["axes", "memory", "cycle", "limit", "idle", "given", "rule"]
REASONS: Final[dict[Reason, str]] = {
    "axes": "their loops have no common space",
    "memory": "one reads the other's result from memory",
    "cycle": "another path leads from one to the other",
    "limit": "the group would be larger than an option allows",
    "idle": "most of the machine would be idle",
    "given": "no given group contains both",
    "rule": "a fusion rule refuses them, or no rule covers them",
}


@dataclass(frozen=True)
class Acceptance:
    """The type of `Ok`."""

    def __bool__(self) -> bool:
        return True


Ok: Final = Acceptance()


@dataclass(frozen=True)
class Why:
    """The reason why a rule with a near match does not apply, and the value concerned. Is falsy.

    `kind` is the reason in one word, from the fixed vocabulary `REASONS`.
    """

    reason: str
    node: Node | None = None
    kind: Reason = "rule"

    def __bool__(self) -> bool:
        return False


NOT_MINE: Final = Why("another rule's business")
"""A fusion rule's result for a pair that it does not cover; never shown as a reason."""
