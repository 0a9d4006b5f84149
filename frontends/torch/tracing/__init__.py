"""Tracing of functions and Dynamo graphs to ATen ops, with Dynamo and AOTAutograd.

`tracer` traces; the other files add guards and notes, or omit work that torch repeats. Imports the
rooms `graphs`, `importer`, `aten` and `tensors`.
"""
