"""Schedules as data: the block size of each axis, and what runs the blocks."""

from stack.schedule.check import Need, why_illegal
from stack.schedule.policy import (
    Policy,
    ScheduleCandidate,
    ScheduleChoice,
    first_schedule,
    schedules_of,
    with_schedules,
)
from stack.schedule.record import Axis, AxisSplit, Domain, Prediction, Schedule
from stack.schedule.user_schedules import (
    PART,
    given_for,
    is_list,
    is_pattern,
    named_schedules,
    of_part,
    part_of,
    schedules_in,
)

__all__ = [
    "PART",
    "Axis",
    "AxisSplit",
    "ScheduleChoice",
    "ScheduleCandidate",
    "Domain",
    "Need",
    "Policy",
    "Prediction",
    "Schedule",
    "first_schedule",
    "given_for",
    "is_list",
    "is_pattern",
    "named_schedules",
    "of_part",
    "part_of",
    "schedules_in",
    "schedules_of",
    "why_illegal",
    "with_schedules",
]
