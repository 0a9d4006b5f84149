"""Hosted operators in torch: a part of the wing `ops`.

Imports the rooms `tracing`, `importer`, `aten`, `replay` and `tensors`.
"""
