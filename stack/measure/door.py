"""The door of this wing: functions that commands of the core call."""

from __future__ import annotations

from stack.measure.kernel_race import race_kernel
from stack.measure.optimum_race import race_fusings
from stack.measure.profile import profile

__all__ = ["profile", "race_fusings", "race_kernel"]
