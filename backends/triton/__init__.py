"""The tile level as Triton kernels."""
