"""Choices by measurement: what a pass proposes is tried on the device, the fastest is kept."""
