"""Quantized matmuls: 8 bits on both sides, or weights of fewer bits in groups."""

from stack.ops.qgemm import calibrate
from stack.ops.qgemm.floats import fp8, fp8_block, fp8_tensor, mx, nvfp4
from stack.ops.qgemm.integers import w8a8, w8a8_dynamic, w8a8_static
from stack.ops.qgemm.weights import (
    nf4,
    q4_k,
    q6_k,
    q8_0,
    sparse24,
    w4a16,
    w4a16_awq,
    w4a16_gptq,
)

__all__ = [
    "calibrate",
    "w8a8", "w8a8_static", "w8a8_dynamic",
    "fp8", "fp8_tensor", "fp8_block", "mx", "nvfp4",
    "w4a16", "w4a16_awq", "w4a16_gptq", "nf4", "q8_0", "q4_k", "q6_k", "sparse24",
]  # fmt: skip
