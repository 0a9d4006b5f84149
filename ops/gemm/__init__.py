"""Matrix products: hand-written kernels that the generated ones race against."""
