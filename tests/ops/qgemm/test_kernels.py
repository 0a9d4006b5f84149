"""Triton kernels of quantized products: code for Hopper, without a GPU; parts of sums."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("triton")

from hopper import compiled, pointers

from stack.ops.qgemm import w4a16_triton


@pytest.mark.parametrize("rows", [1, 64])
def test_weights_of_4_bits_meet_tensor_cores_from_registers(rows: int) -> None:
    config, kernel = w4a16_triton.config_for(rows, 4096, 132), w4a16_triton.w4a16_kernel
    constants = {
        "ROWS": config.rows, "COLUMNS": config.columns, "HALF": 64, "SIZE": 64,
        "PARTS": config.parts, "PTX": True,
    }  # fmt: skip
    types = pointers(kernel, "bf16 u8 bf16 bf16 fp32 i32")
    aligned = {"columns", "half", *types}
    stages = config.stages
    made = compiled(kernel, types, constants, aligned, num_warps=config.warps, num_stages=stages)
    ptx = made.asm["ptx"]
    assert "wgmma.mma_async" in ptx and "cp.async" in ptx
    # the left operand is four registers and not an address
    assert "}, {%r" in ptx.split("wgmma.mma_async", 1)[1].splitlines()[0]
    assert "ld.local" not in ptx


PARTS = """
import torch
from stack.backends.triton import interpreter
from stack.ops.qgemm import w4a16
from stack.ops.qgemm.w4a16_triton import Config, w4a16 as kernel

interpreter.mend()
torch.manual_seed(0)
packed = torch.randint(0, 256, (40, 256), dtype=torch.uint8)
for rows, parts in ((1, 1), (3, 4), (20, 3), (20, 8)):
    x, scales = torch.randn(rows, 512), torch.rand(40, 4)
    exact = w4a16(x.half().double(), packed, scales.half().double())
    found = kernel(x.half(), packed, scales.half(), Config(16, 32, 4, 2, parts))
    error = ((found - exact).abs().max() / exact.abs().max()).item()
    assert error < 1e-3, (rows, parts, error)
"""

SUMS = """
import torch
from stack.backends.triton import interpreter
from stack.ops.gemm.specialized_gluon import sum_kernel

interpreter.mend()
parts = torch.randn(3, 1000)
y = torch.empty(900, dtype=torch.float16)
sum_kernel[(4,)](parts, y, 900, 1000, 3, 256)
torch.testing.assert_close(y, parts.double().sum(0)[:900].half(), rtol=1e-3, atol=1e-3)
"""

CODES = """
import torch
from stack.backends.triton import interpreter
from stack.ops.qgemm.w8a8_triton import codes_of

interpreter.mend()
torch.manual_seed(0)
for depth in (6, 5000):
    x = torch.randn(4, depth) * torch.tensor([[1], [1e-3], [100], [0]])
    codes, scales = codes_of(x)
    top = x.abs().amax(-1)
    assert torch.equal(scales, torch.where(top > 0, top, 1) / 127), depth
    assert torch.equal(codes, torch.round(x / scales[:, None]).to(torch.int8)), depth
"""


def test_values_in_the_interpreter() -> None:
    """Split sums are added by the last program; with more parts than steps some are empty."""
    done = subprocess.run(
        [sys.executable, "-c", PARTS + SUMS + CODES],  # one import of torch and Triton
        env={**os.environ, "TRITON_INTERPRET": "1"},
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
