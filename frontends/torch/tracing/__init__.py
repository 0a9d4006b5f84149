"""Tracing of functions and Dynamo graphs to ATen ops, with Dynamo and AOTAutograd.

`dynamo` captures a callable, `functional` takes its graph to ATen ops, by `recorder` or by
AOTAutograd. `layouts` and `notes` add memory layouts and notes. Imports the rooms `graphs`,
`importer`, `aten` and `tensors`.
"""
