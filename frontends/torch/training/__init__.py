"""Gradients: the joint graph and its partition, the delayed backward pass, saved tensors.

A part of the wing `calls`. Imports the rooms `tracing`, `program`, `importer` and `tensors`.
"""
