"""What pass `quantize` is made of."""
