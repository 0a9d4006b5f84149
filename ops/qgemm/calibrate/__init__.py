"""What to round to, chosen by data: scales, rotations, and the order in which weights are rounded.

NumPy, for weights that fit a laptop; each file is one paper's algorithm. `weight [n, k]` meets
`x [rows, k]`, a sample of what a layer is given.
What is decorated is what pass `quantize` calls, by name: `quantize{calibrate=hadamard+gptq}`.
"""

from stack.ops.qgemm.calibrate import awq, gptq, hadamard, minmax, smoothquant

__all__ = ["awq", "gptq", "hadamard", "minmax", "smoothquant"]
