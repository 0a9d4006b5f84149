"""A compiled graph and its calls: the checks around a run, the fast path by addresses.

A part of the wing `calls`. Imports the rooms `capture`, `importer`, `aten` and `tensors`.
"""
