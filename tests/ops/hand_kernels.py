"""Runs hand-written Triton kernels in Triton's interpreter, which must be chosen before import.

Prints a JSON object: the name of a case to its largest error against double precision.
"""

from __future__ import annotations

import json

import torch

from stack.backends.triton import interpreter
from stack.ops.attention import flash_triton
from stack.ops.gemm import persistent_triton

interpreter.mend()
SMALL = flash_triton.Config(32, 16, 4, 2)
TILES = persistent_triton.Config(32, 32, 16, 4, 2)
# batch, heads, groups, length, width, causal
ATTENTION = (
    (1, 2, 2, 64, 64, True),
    (1, 2, 2, 64, 64, False),
    (2, 4, 2, 53, 64, True),
    (1, 4, 1, 53, 128, False),
    (1, 1, 1, 1, 64, True),
    (1, 2, 2, 17, 64, False),
    (0, 2, 2, 17, 64, False),
)
PRODUCTS = ((64, 64, 32), (53, 72, 40), (1, 8, 8), (130, 40, 24), (0, 8, 8), (8, 8, 0))


def main() -> None:
    found: dict[str, float] = {}
    torch.manual_seed(0)
    for dtype in (torch.bfloat16, torch.float16):
        for batch, heads, groups, length, width, causal in ATTENTION:
            q = torch.randn(batch, heads, length, width).to(dtype)
            k, v = (torch.randn(batch, groups, length, width).to(dtype) for _ in range(2))
            q = q.mT.contiguous().mT  # a view whose last axis is not the densest
            out = flash_triton.attention(q, k, v, causal, SMALL)
            name = f"attention {dtype} {batch} {heads} {groups} {length} {width} {causal}"
            found[name] = error(out, flash_triton.reference(q, k, v, causal))
        for m, n, k_ in PRODUCTS:
            x, w = torch.randn(m, k_).to(dtype), torch.randn(n, k_).to(dtype)
            out = persistent_triton.matmul(x, w, TILES)
            found[f"matmul {dtype} {m} {n} {k_}"] = error(out, persistent_triton.reference(x, w))
    print(json.dumps(found))


def error(found: torch.Tensor, expected: torch.Tensor) -> float:
    assert found.shape == expected.shape
    if not expected.numel():
        return 0.0
    return float((found.double() - expected).abs().max() / expected.abs().max().clamp(min=1))


if __name__ == "__main__":
    main()
