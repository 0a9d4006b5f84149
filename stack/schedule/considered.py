"""What was considered for a group: schedules with the times expected and measured, and what stands
against the others. Recorded where a schedule is chosen, and kept in the run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from stack.schedule.policy import Policy
from stack.schedule.record import Prediction


@dataclass
class Considered:
    """One schedule.

    Attributes:
        expected: what the model says; None where none says anything.
        why: what stands against it; "" where it is legal.
        seconds: as measured; None where it was not, or did not run.
        problem: why it did not.
    """

    schedule: str
    expected: Prediction | None = None
    why: str = ""
    seconds: float | None = None
    problem: str = ""

    def record(self) -> dict[str, Any]:
        """As JSON; what is not known is left out."""
        known: dict[str, Any] = {"schedule": self.schedule, "why": self.why}
        if self.expected is not None:
            known |= {"expected": self.expected.seconds, "parts": dict(self.expected.parts)}
        known |= {"measured": self.seconds, "problem": self.problem}
        return {k: v for k, v in known.items() if v not in (None, "", {})}


@dataclass
class Choice:
    """What was considered for one group; the first is what it took.

    Attributes:
        group: its name.
        domain: its axes.
        by: who chose: "policy", "hand", "measurement"; or why there is nothing to choose.
    """

    group: str
    domain: str
    by: str
    schedules: list[Considered] = field(default_factory=list[Considered])

    @staticmethod
    def of(policy: Policy, group: str, taken: str = "") -> Choice:
        """What a policy considers for a group; `taken` is what a person wrote, complete."""
        found = {str(s): Considered(str(s), p) for s, p in policy.considered}
        for schedule in policy.misfits():
            found[str(schedule)] = Considered(str(schedule), why=policy.why_illegal(schedule))
        if taken:
            found = {taken: found.get(taken, Considered(taken)), **found}
        by = "hand" if taken else "policy"
        return Choice(group, str(policy.domain), by, list(found.values()))

    def measured(self, seconds: Mapping[str, float | None], problems: Mapping[str, str]) -> Choice:
        """The same with what was measured, fastest first."""
        for held in self.schedules:
            held.seconds = seconds.get(held.schedule)
            held.problem = problems.get(held.schedule, "")
        ordered = sorted(self.schedules, key=lambda c: c.seconds or float("inf"))
        return Choice(self.group, self.domain, "measurement", ordered)

    def record(self) -> dict[str, Any]:
        """As JSON."""
        held = [c.record() for c in self.schedules]
        return {"group": self.group, "domain": self.domain, "by": self.by, "schedules": held}


__all__ = ["Choice", "Considered"]
