"""Scheduling policies: choose the schedule of a group from its domain and a cost model.

The attribute `schedule` of a fusion, a stream or a kernel is one text or several, best first: the
first is used, the others are for tuning to try. The run keeps the schedules that were considered,
with expected and measured times and reasons against.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from stack.errors import UsageError
from stack.ir.node import Node
from stack.schedule.check import Need, why_illegal
from stack.schedule.record import Domain, Prediction, Schedule


def schedules_of(node: Node) -> tuple[str, ...]:
    """Returns the texts of the schedules that a fusion group has as attribute, best first; empty if
    it has none.
    """
    named = node.attrs.get("schedule") or ()
    return (named,) if isinstance(named, str) else tuple(named)


def is_list(text: str) -> bool:
    """True if the text of a schedule is a list of loop transformations, each beginning with the
    name of a primitive, and not of entries such as `m=128`.
    """
    words = text.partition(";")[0].split()
    return len(words) > 1 and "=" not in words[0] and "=" not in words[1]


def first_schedule(node: Node) -> Schedule | None:
    """Returns the best schedule of a fusion group; None if it has none. Raises UsageError if its
    text cannot be parsed.
    """
    named = schedules_of(node)
    return Schedule.parse(named[0]) if named else None


def with_schedules(node: Node, texts: Sequence[str]) -> Node:
    """The group with these schedules in place of its own; an empty list removes them."""
    attrs = {k: v for k, v in node.attrs.items() if k != "schedule"}
    if texts:
        attrs["schedule"] = texts[0] if len(texts) == 1 else tuple(texts)
    return Node(node.op, node.args, attrs, node.type, node.blocks)


class Policy(ABC):
    """Chooses schedules for one kind of iteration space on one target: ranks, completes, checks."""

    @cached_property
    def domain(self) -> Domain:
        """The iteration space: its axes with their extents, and the bindings, block sizes and
        options that a schedule may use. By default, there is nothing to choose.
        """
        return Domain(options=())

    def candidates(self) -> list[tuple[Schedule, Prediction | None]]:
        """Legal schedules with the model's expected time, if it has one; best first. By default the
        policy's own choice.
        """
        return [(self.complete(Schedule()), None)]

    @cached_property
    def considered(self) -> list[tuple[Schedule, Prediction | None]]:
        """`candidates`, cached."""
        return self.candidates()

    def misfits(self) -> Sequence[Schedule]:
        """Schedules that were considered but are illegal; `why_illegal` gives the reason."""
        return ()

    @abstractmethod
    def complete(self, given: Schedule) -> Schedule:
        """Returns the schedule with everything that `given` leaves open, such as block sizes and
        bindings, filled in by this policy.
        """

    def needs(self, schedule: Schedule) -> Sequence[Need]:
        """The program resources that the kernel of a complete schedule uses."""
        return ()

    def why_illegal(self, schedule: Schedule) -> str:
        """The reason why a complete schedule is illegal; "" if it is legal."""
        why = why_illegal(schedule, self.domain)
        if why or schedule.instead:
            return why
        return why_illegal(schedule, self.domain, self.needs(schedule))

    def follow(self, given: Schedule) -> Schedule:
        """Completes a schedule written by hand.

        Raises:
            UsageError: it does not fit the domain or the target; names axis, rule and number.
        """
        made = given if given.instead else self.complete(given)
        why = self.why_illegal(made)
        if why:
            raise UsageError(f"schedule {str(given)!r}: {why}")
        return made

    def of(self, group: Node) -> Schedule:
        """Returns the complete schedule of a fusion group: its first own one, completed, or the
        best candidate if it has none. Raises UsageError as `follow` does.
        """
        named = first_schedule(group)
        return self.considered[0][0] if named is None else self.follow(named)


@dataclass
class ScheduleCandidate:
    """One schedule that was considered for a fusion group."""

    schedule: str
    expected: Prediction | None = None  # by the model
    why: str = ""  # the reason why it is illegal; "" if it is legal
    seconds: float | None = None  # measured; None if it was not measured or did not run
    problem: str = ""  # the reason why it did not run

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
