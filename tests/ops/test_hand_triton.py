"""Hand-written Triton kernels: values in Triton's interpreter, code for Hopper without a GPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from hopper import compiled  # noqa: E402

from stack.errors import UsageError  # noqa: E402
from stack.ops.attention import flash_triton  # noqa: E402
from stack.ops.gemm import persistent_triton  # noqa: E402

TESTS = Path(__file__).parents[1]


def test_values_in_the_interpreter() -> None:
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("hand_kernels.py"))],
        env={**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": str(TESTS)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert len(found) == 26
    wrong = {k: v for k, v in found.items() if not v < (2e-2 if "bfloat16" in k else 3e-3)}
    assert not wrong


@pytest.mark.parametrize("width", [64, 128])
@pytest.mark.parametrize("config", flash_triton.CONFIGS, ids=str)
def test_attention_compiles_to_tensor_cores(config: flash_triton.Config, width: int) -> None:
    tiles = {n: f"tensordesc<bf16[1, {config.rows}, {width}]>" for n in ("q_desc", "o_desc")}
    tiles |= {n: f"tensordesc<bf16[1, {config.columns}, {width}]>" for n in ("k_desc", "v_desc")}
    made = compiled(
        flash_triton.attention_kernel,
        {**tiles, "lse_ptr": "*fp32", "scale": "fp32"},
        {
            "SHARE": 1,
            "ROWS": config.rows,
            "COLUMNS": config.columns,
            "WIDTH": width,
            "CAUSAL": True,
        },
        num_warps=config.warps,
        num_stages=config.stages,
    )
    assert "wgmma.mma_async" in made.asm["ptx"]
    assert "cp.async.bulk.tensor.3d" in made.asm["ptx"]
    assert made.asm["cubin"]


@pytest.mark.parametrize("name", ["LARGE", "MEDIUM", "FLAT"])
def test_matmul_compiles_to_tensor_cores(name: str) -> None:
    config: persistent_triton.Config = getattr(persistent_triton, name)
    made = compiled(
        persistent_triton.matmul_kernel,
        {
            "a_desc": f"tensordesc<bf16[{config.rows}, {config.depth}]>",
            "b_desc": f"tensordesc<bf16[{config.columns}, {config.depth}]>",
            "c_desc": f"tensordesc<bf16[{config.rows}, {config.columns}]>",
        },
        {
            "PROGRAMS": 132,
            "ROWS": config.rows,
            "COLUMNS": config.columns,
            "DEPTH": config.depth,
            "GROUP": config.group,
            "SPECIAL": config.special,
        },
        num_warps=config.warps,
        num_stages=config.stages,
    )
    assert "wgmma.mma_async" in made.asm["ptx"]
    assert "cp.async.bulk.tensor.2d" in made.asm["ptx"]


def test_what_the_kernels_have_no_code_for_is_refused() -> None:
    x = torch.zeros(1, 2, 8, 32, dtype=torch.bfloat16)
    with pytest.raises(UsageError, match="heads of 64 or 128"):
        flash_triton.attention(x, x, x)
    q = torch.zeros(1, 3, 8, 64, dtype=torch.bfloat16)
    with pytest.raises(UsageError, match="do not fit"):
        flash_triton.attention(q, q[:, :2], q[:, :2])
    with pytest.raises(UsageError, match="multiples of 8"):
        persistent_triton.matmul(torch.zeros(4, 9), torch.zeros(8, 9))


def test_tiles_follow_the_shape() -> None:
    assert persistent_triton.config_for(16, 4096, 132) is persistent_triton.FLAT
    assert persistent_triton.config_for(512, 1024, 132) is persistent_triton.MEDIUM
    assert persistent_triton.config_for(8192, 8192, 132) is persistent_triton.LARGE
