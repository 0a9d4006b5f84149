"""Where values sit and what is known of their places: affine indices, blocks, masks."""
