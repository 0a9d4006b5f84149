"""Triton kernels of hosted operators: values in the interpreter, code for Hopper without a GPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hosted_cases import own

pytest.importorskip("torch")
pytest.importorskip("triton")

from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.compiler import compile as compile_kernel

from stack.hosted import find
from stack.ops.loss import linear_triton, rows_triton
from stack.ops.norm import rows_triton as norms
from stack.ops.scan import carried_triton

HOPPER = GPUTarget("cuda", 90, 32)
SHARED = 232448  # bytes that one program may have


def test_values_in_the_interpreter() -> None:
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("hosted_kernels.py"))],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    written = {n for n in own() if any(k.device == "cuda" for k in find(n).kernels)}
    assert written == {name.partition("-")[0] for name in found if "-" in name}
    assert not {k: v for k, v in found.items() if not v < (5e-3 if "float16" in k else 1e-5)}


def compiled(kernel: Any, pointers: str, constants: dict[str, int], **options: int) -> Any:
    """`pointers`: the element type of each parameter whose name ends in `_ptr`, in order."""
    types = iter(pointers.split())
    signature = {
        name: f"*{next(types)}" if name.endswith("_ptr")
        else "constexpr" if name in constants
        else "fp32" if name == "eps"
        else "i32"
        for name in kernel.arg_names
    }  # fmt: skip
    source = ASTSource(kernel, signature, constexprs=constants)
    return compile_kernel(source, target=HOPPER, options=options)


@pytest.mark.parametrize(
    ("kernel", "pointers"),
    [
        (norms.rms_norm_kernel, "bf16 bf16 bf16"),
        (norms.layer_norm_kernel, "bf16 bf16 bf16 bf16"),
        (norms.softmax_kernel, "bf16 bf16"),
        (rows_triton.cross_entropy_kernel, "bf16 i64 fp32"),
        (carried_triton.inclusive_kernel, "bf16 bf16"),
    ],
    ids=["rms_norm", "layer_norm", "softmax", "cross_entropy", "inclusive"],
)
def test_rows_stay_in_registers(kernel: Any, pointers: str) -> None:
    made = compiled(kernel, pointers, {"COLUMNS": 4096}, num_warps=8)
    assert made.asm["cubin"]
    assert "ld.local" not in made.asm["ptx"]


def test_a_linear_loss_runs_on_tensor_cores() -> None:
    config = linear_triton.CONFIG
    tile = {"ROWS": config.rows, "CLASSES": config.classes, "DEPTH": config.depth}
    made = compiled(
        linear_triton.linear_cross_entropy_kernel,
        "bf16 bf16 i64 fp32 fp32 fp32",
        tile,
        num_warps=config.warps,
        num_stages=config.stages,
    )
    assert "wgmma.mma_async" in made.asm["ptx"]
    assert made.metadata.shared <= SHARED
