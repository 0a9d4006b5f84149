"""Capture of modules and functions as one function of weights and arguments, without guards.

`capture` traces a program, `calls` converts the arguments and results of its calls. Imports the
rooms `tracing`, `graphs`, `importer`, `aten` and `tensors`.
"""
