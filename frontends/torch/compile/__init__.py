"""Calls with the guards of torch: `stack.compile` and `torch.compile`. A part of the wing `calls`.

Imports the rooms `training`, `program`, `capture`, `tracing`, `graphs`, `importer` and `tensors`.
"""
