"""What chooses the schedule of a group: its domain on a target, and a model of time."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cached_property

from stack.errors import UsageError
from stack.ir.node import Node
from stack.schedule.check import Need, Rules, why_illegal
from stack.schedule.group import first_schedule
from stack.schedule.record import Domain, Prediction, Schedule


class Policy(ABC):
    """Schedules of one kind of domain on one target.

    Attributes:
        domain: the axes.
        rules: what the loops of the kernel can follow.
    """

    domain: Domain
    rules: Rules

    @abstractmethod
    def candidates(self) -> list[tuple[Schedule, Prediction | None]]:
        """Legal schedules with the time that the model expects, if it knows one; best first."""

    @cached_property
    def considered(self) -> list[tuple[Schedule, Prediction | None]]:
        """`candidates`, asked once."""
        return self.candidates()

    def misfits(self) -> Sequence[Schedule]:
        """Schedules that were looked at and do not fit; `why_illegal` says why."""
        return ()

    @abstractmethod
    def complete(self, given: Schedule) -> Schedule:
        """A schedule with what it leaves open."""

    def needs(self, schedule: Schedule) -> Sequence[Need]:
        """What the kernel of a complete schedule takes of a program's resources."""
        return ()

    def why_illegal(self, schedule: Schedule) -> str:
        """What stands against a complete schedule; "" where nothing does."""
        why = why_illegal(schedule, self.domain, self.rules)
        if why or schedule.instead:
            return why
        return why_illegal(schedule, self.domain, self.rules, self.needs(schedule))

    def follow(self, given: Schedule) -> Schedule:
        """A schedule that somebody wrote, complete.

        Raises:
            UsageError: it does not fit the domain or the target; names axis, rule and number.
        """
        made = self.complete(given)
        why = self.why_illegal(made)
        if why:
            raise UsageError(f"schedule {str(given)!r}: {why}")
        return made

    def of(self, group: Node) -> Schedule:
        """The schedule that a group names, or the best. Raises UsageError as `follow` does."""
        named = first_schedule(group)
        return self.considered[0][0] if named is None else self.follow(named)
