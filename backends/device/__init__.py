"""Shared by the GPU backends: programs of kernels and library calls on one device's tensors."""
