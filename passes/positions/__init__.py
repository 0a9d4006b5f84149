"""Index maps of values: affine indices, intervals on blocks, masks."""
