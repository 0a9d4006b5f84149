"""Native calls of a compiled program: by addresses, and as custom calls of XLA.

Part of the wing `calls`. Imports `mlir`, `device` and `runtime`, which do not import this folder.
"""
