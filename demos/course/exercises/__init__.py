"""The exercises: functions with gaps."""
