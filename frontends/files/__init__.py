"""Programs in files of other tools: ONNX models and StableHLO text. A wing of the core.

Each format is a room with a `FORMAT`, found by entry point `stack.formats` and the file's suffix.
Imports no other room of the frontends.
"""
