"""Schedules as data: the block size of each axis, and what runs the blocks."""

from stack.schedule.check import Need as Need
from stack.schedule.check import Rules as Rules
from stack.schedule.check import why_illegal as why_illegal
from stack.schedule.policy import Policy as Policy
from stack.schedule.policy import ScheduleCandidate as ScheduleCandidate
from stack.schedule.policy import ScheduleChoice as ScheduleChoice
from stack.schedule.policy import first_schedule as first_schedule
from stack.schedule.policy import schedules_of as schedules_of
from stack.schedule.policy import with_schedules as with_schedules
from stack.schedule.record import Axis as Axis
from stack.schedule.record import Domain as Domain
from stack.schedule.record import Prediction as Prediction
from stack.schedule.record import Schedule as Schedule
from stack.schedule.record import Split as Split
from stack.schedule.user_schedules import PART as PART
from stack.schedule.user_schedules import given_for as given_for
from stack.schedule.user_schedules import is_list as is_list
from stack.schedule.user_schedules import is_pattern as is_pattern
from stack.schedule.user_schedules import named_schedules as named_schedules
from stack.schedule.user_schedules import of_part as of_part
from stack.schedule.user_schedules import part_of as part_of
from stack.schedule.user_schedules import schedules_in as schedules_in
