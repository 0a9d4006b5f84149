"""The loop level as MLIR, compiled to machine code in process."""
