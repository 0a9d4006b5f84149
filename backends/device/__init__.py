"""What the GPU backends share: programs of kernels and library calls on one device's tensors."""
