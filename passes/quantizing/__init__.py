"""Parts of pass `quantize`."""
