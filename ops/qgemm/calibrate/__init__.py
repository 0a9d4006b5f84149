"""Calibration from data: chooses scales, rotations, and the order in which weights are rounded.

Runs in NumPy, for weights that fit a laptop; each file is one paper's algorithm. `weight [n, k]` is
multiplied with `x [rows, k]`, a sample of a layer's input.
Pass `quantize` calls the decorated functions by name: `quantize{calibrate=hadamard+gptq}`.
"""

from stack.ops.qgemm.calibrate import awq, gptq, hadamard, minmax, smoothquant

__all__ = ["awq", "gptq", "hadamard", "minmax", "smoothquant"]
