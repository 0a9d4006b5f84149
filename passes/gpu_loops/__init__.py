"""What `distribute_gpu` makes grids, warps and lanes of."""
