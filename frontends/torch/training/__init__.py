"""Gradients: the joint graph, the delayed backward pass, saved tensors, lowerings of derivatives.

A part of the wing `calls`. Imports the rooms `tracing`, `program`, `importer`, `aten` and
`tensors`.
"""
