"""Runs the Triton kernels around the Gluon backward in Triton's interpreter.

Prints a JSON object: the name of a case to its largest error.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))


from stack.backends.triton import interpreter
from stack.ops.attention import flash_backward_gluon as backward

interpreter.mend()
HEADS, LENGTH, TILES, WIDTH = 3, 100, 2, 64
HALF = WIDTH // 2


def main() -> None:
    torch.manual_seed(0)
    dq = torch.randn(HEADS, TILES, 64, 2, HALF)
    held = dq.movedim(3, 2).reshape(HEADS, TILES, 2, 4, 2, 8, HALF // 8, 4, 2)
    held = held.permute(0, 1, 2, 6, 3, 5, 7, 4, 8).contiguous()  # as `_derive` lays it down
    rows = torch.empty(HEADS, LENGTH, WIDTH)
    backward.finish_kernel[(TILES, HEADS)](held, rows, LENGTH, 2.0, WIDTH)
    expected = 2 * dq.reshape(HEADS, -1, WIDTH)[:, :LENGTH]
    out, told = torch.randn(HEADS, LENGTH, WIDTH), torch.randn(HEADS, LENGTH, WIDTH)
    lse, told_lse = torch.randn(HEADS, LENGTH), torch.randn(HEADS, LENGTH)
    lines, sums = torch.ones(HEADS, 2, TILES * 64), torch.ones(HEADS, TILES * 64, WIDTH)
    backward.prepare_kernel[(TILES, HEADS)](out, told, told_lse, lse, lines, sums, LENGTH, WIDTH)
    within = torch.stack((lse * 1.4426950408889634, (out * told).sum(-1) - told_lse), 1)
    assert lines[:, 0, LENGTH:].isposinf().all()
    found = {
        "rows": (rows - expected).abs().max(),
        "lines": (lines[:, :, :LENGTH] - within).abs().max(),
        "zeros": sums.abs().max(),
    }
    print(json.dumps({k: float(v) for k, v in found.items()}))


if __name__ == "__main__":
    main()
