"""Torch functions as simpler ones, where torch's own are wrong, slow or missing: wing `functions`.

Imports the rooms `tracing` and `tensors`.
"""
