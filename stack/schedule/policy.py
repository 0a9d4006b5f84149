"""Scheduling policies: choose the schedule of a group from its domain and a cost model."""

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
    """Chooses schedules for one kind of iteration space on one target: ranks, completes, checks.

    Attributes:
        domain: the iteration space: its axes with their extents.
        rules: the bindings, block sizes and options that a schedule may use.
    """

    domain: Domain
    rules: Rules

    @abstractmethod
    def candidates(self) -> list[tuple[Schedule, Prediction | None]]:
        """Legal schedules with the model's expected time, if it has one; best first."""

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
        why = why_illegal(schedule, self.domain, self.rules)
        if why or schedule.instead:
            return why
        return why_illegal(schedule, self.domain, self.rules, self.needs(schedule))

    def follow(self, given: Schedule) -> Schedule:
        """Completes a schedule written by hand.

        Raises:
            UsageError: it does not fit the domain or the target; names axis, rule and number.
        """
        made = self.complete(given)
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
