"""The door of this wing: functions that commands of the core call."""

from __future__ import annotations

from stack.measure.calibrate import base_at_hand, calibrated
from stack.measure.optimum_race import measured
from stack.measure.plots import plot_landscape
from stack.measure.profile import profile

__all__ = ["base_at_hand", "calibrated", "measured", "plot_landscape", "profile"]
