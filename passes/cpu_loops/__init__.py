"""Reductions and short axes of kernels of a CPU."""
