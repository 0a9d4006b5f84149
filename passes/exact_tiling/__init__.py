"""Tiles of matrix products; kernels of streams in exact blocks, the last of which may overlap."""
