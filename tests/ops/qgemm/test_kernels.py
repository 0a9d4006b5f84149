"""Triton kernels of quantized products: code for Hopper, without a GPU; parts of sums."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("triton")

from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.compiler import compile as compile_kernel

from stack.ops.qgemm import w4a16_triton

SHARED = 232448  # bytes that one program may have
WHOLE = ("half", "columns", "depth")  # multiples of 16, and so is memory


def compiled(kernel: Any, pointers: str, constants: dict[str, int], warps: int, stages: int) -> Any:
    """`pointers`: the type of each parameter whose name ends in `_ptr` or `_desc`, in order."""
    types = iter(pointers.split())
    signature, attributes = {}, {}
    for place, name in enumerate(kernel.arg_names):
        is_memory = name.endswith(("_ptr", "_desc"))
        kind = next(types) if is_memory else "constexpr" if name in constants else "i32"
        signature[name] = f"*{kind}" if name.endswith("_ptr") else kind
        if name.endswith("_ptr") or name in WHOLE:
            attributes[(place,)] = [["tt.divisibility", 16]]
    source = ASTSource(kernel, signature, constexprs=constants, attrs=attributes)
    options = {"num_warps": warps, "num_stages": stages}
    return compile_kernel(source, target=GPUTarget("cuda", 90, 32), options=options)


def instructions(made: Any, name: str) -> int:
    return made.asm["ptx"].count(name)


@pytest.mark.parametrize("rows", [1, 64])
def test_weights_of_4_bits_meet_tensor_cores_from_registers(rows: int) -> None:
    config = w4a16_triton.config_for(rows, 4096, 132)
    tile = {"ROWS": config.rows, "COLUMNS": config.columns, "HALF": 64, "SIZE": 64}
    made = compiled(
        w4a16_triton.w4a16_kernel,
        "bf16 u8 bf16 bf16 fp32 i32",
        {**tile, "PARTS": config.parts, "PTX": True},
        config.warps,
        config.stages,
    )
    assert instructions(made, "wgmma.mma_async") and instructions(made, "cp.async")
    # the left operand is four registers and not an address
    assert "}, {%r" in made.asm["ptx"].split("wgmma.mma_async", 1)[1].splitlines()[0]
    assert made.metadata.shared <= SHARED and not instructions(made, "ld.local")


PARTS = """
import torch
import triton_interpreter
from stack.ops.qgemm import w4a16
from stack.ops.qgemm.w4a16_triton import Config, w4a16 as kernel

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
import triton_interpreter
from stack.ops.gemm.specialized_gluon import sum_kernel

parts = torch.randn(3, 1000)
y = torch.empty(900, dtype=torch.float16)
sum_kernel[(4,)](parts, y, 900, 1000, 3, 256)
torch.testing.assert_close(y, parts.double().sum(0)[:900].half(), rtol=1e-3, atol=1e-3)
"""

CODES = """
import torch
import triton_interpreter
from stack.ops.qgemm.w8a8_triton import codes_of

torch.manual_seed(0)
for depth in (6, 5000):
    x = torch.randn(4, depth) * torch.tensor([[1], [1e-3], [100], [0]])
    codes, scales = codes_of(x)
    top = x.abs().amax(-1)
    assert torch.equal(scales, torch.where(top > 0, top, 1) / 127), depth
    assert torch.equal(codes, torch.round(x / scales[:, None]).to(torch.int8)), depth
"""


@pytest.mark.parametrize(
    "script", [PARTS, SUMS, CODES], ids=["parts of a sum", "sums of parts", "codes of rows"]
)
def test_values_in_the_interpreter(script: str) -> None:
    """Of sums in parts, who arrives last adds; more parts than steps leave some empty."""
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
