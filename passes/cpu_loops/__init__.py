"""Lowers tile kernels of matmuls to loops on a CPU: packed panels, register tiles, prefetches."""
