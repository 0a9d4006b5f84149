"""A compiled graph and its calls: arguments, checks before and after a run, the fast path.

Imports the rooms `importer`, `aten` and `tensors`.
"""
