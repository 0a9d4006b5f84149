"""The schedules that were considered for a group, with expected and measured times and reasons
against. Recorded when a schedule is chosen, and kept in the run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from stack.schedule.policy import Policy
from stack.schedule.record import Prediction


@dataclass
class ScheduleCandidate:
    """One schedule that was considered for a fusion group.

    Attributes:
        expected: the model's prediction; None if there is none.
        why: the reason why it is illegal; "" if it is legal.
        seconds: measured time; None if it was not measured or did not run.
        problem: the reason why it did not run.
    """

    schedule: str
    expected: Prediction | None = None
    why: str = ""
    seconds: float | None = None
    problem: str = ""

    def record(self) -> dict[str, Any]:
        """As JSON, without unknown values."""
        known: dict[str, Any] = {"schedule": self.schedule, "why": self.why}
        if self.expected is not None:
            known |= {"expected": self.expected.seconds, "parts": dict(self.expected.parts)}
        known |= {"measured": self.seconds, "problem": self.problem}
        return {k: v for k, v in known.items() if v not in (None, "", {})}


@dataclass
class ScheduleChoice:
    """The schedules that were considered for one group; the first one was chosen.

    Attributes:
        group: its name.
        domain: its axes.
        by: who chose: "policy", "hand", "measurement"; or the reason why there is no choice.
    """

    group: str
    domain: str
    by: str
    schedules: list[ScheduleCandidate] = field(default_factory=list[ScheduleCandidate])

    @staticmethod
    def of(policy: Policy, group: str, taken: str = "") -> ScheduleChoice:
        """Lists the schedules that a policy considers for a group, the illegal ones too. `taken` is
        a complete schedule written by hand, which is chosen; "" lets the policy choose.
        """
        found = {str(s): ScheduleCandidate(str(s), p) for s, p in policy.considered}
        for schedule in policy.misfits():
            found[str(schedule)] = ScheduleCandidate(
                str(schedule), why=policy.why_illegal(schedule)
            )
        if taken:
            found = {taken: found.get(taken, ScheduleCandidate(taken)), **found}
        by = "hand" if taken else "policy"
        return ScheduleChoice(group, str(policy.domain), by, list(found.values()))

    def measured(
        self, seconds: Mapping[str, float | None], problems: Mapping[str, str]
    ) -> ScheduleChoice:
        """Returns a copy with measured times and error texts, by schedule; the fastest schedule is
        first.
        """
        for held in self.schedules:
            held.seconds = seconds.get(held.schedule)
            held.problem = problems.get(held.schedule, "")
        ordered = sorted(self.schedules, key=lambda c: c.seconds or float("inf"))
        return ScheduleChoice(self.group, self.domain, "measurement", ordered)

    def record(self) -> dict[str, Any]:
        """As JSON."""
        held = [c.record() for c in self.schedules]
        return {"group": self.group, "domain": self.domain, "by": self.by, "schedules": held}
