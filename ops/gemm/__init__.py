"""Matmuls: hand-written kernels that generated ones are compared with."""
