"""Gradients: the joint graph and its partition, the delayed backward pass, saved tensors.

Imports the rooms `tracing`, `program`, `importer` and `tensors`.
"""
