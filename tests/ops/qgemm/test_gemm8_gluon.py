"""The Gluon kernel of 8-bit floats with many rows: code for Hopper, without a GPU."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")
pytest.importorskip("triton")

import torch
from triton.backends.compiler import GPUTarget
from triton.compiler import compile as compile_kernel
from triton.experimental.gluon import language as gl
from triton.experimental.gluon._runtime import GluonASTSource

from stack.ir.types import DTYPES, TensorType
from stack.ops.qgemm import fp8 as fp8_rows
from stack.ops.qgemm import fp8_block, fp8_tensor, gemm8_gluon

SHARED = 232448  # bytes that one program may have


@pytest.mark.parametrize("out", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("is_blocked", [True, False])
def test_its_tiles_come_and_go_through_shared_memory(is_blocked: bool, out: torch.dtype) -> None:
    config, size = gemm8_gluon.config_for(is_blocked, out), 8 * out.itemsize
    constants = {
        "STAGES": config.stages, "GROUP": 8, "PROGRAMS": 132, "BLOCKED": is_blocked,
    }  # fmt: skip
    tiles = {
        "x_desc": ("fp8e4nv", gemm8_gluon.HALF, 8),
        "w_desc": ("fp8e4nv", config.columns, 8),
        "y_desc": ("fp32" if size == 32 else "bf16", gemm8_gluon.HALF, size),
    }
    signature = {
        n: "*fp32" if n.endswith("_ptr") else "i32" for n in gemm8_gluon.gemm8_kernel.arg_names
    } | dict.fromkeys(constants, "constexpr")
    for name, (dtype, rows, bits) in tiles.items():
        layout = gl.NVMMASharedLayout(128, bits, 2)
        signature[name] = f"tensordesc<{dtype}[{rows}, {gemm8_gluon.BLOCK}],{layout!r}>"
    source = GluonASTSource(gemm8_gluon.gemm8_kernel, signature, constants)
    made = compile_kernel(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 4})
    text = made.asm["ptx"]
    for name in ("e4m3.e4m3", "setmaxnreg", "shared::cluster.global", "global.shared::cta"):
        assert name in text
    assert made.metadata.shared <= SHARED and "ld.local" not in text


def test_it_is_for_many_rows() -> None:
    def why_not(rows: int) -> str:
        types = [TensorType(DTYPES[d], s) for d, s in (
            ("u8", (rows, 256)), ("u8", (64, 256)), ("f32", (rows,)), ("f32", (64,)),
        )]  # fmt: skip
        return fp8_rows.kernels[0].why_not(types, {"format": "e4m3"})

    assert why_not(64) == "64 rows of x leave half of a tile empty"
    assert why_not(65) == ""


@pytest.mark.gpu
@pytest.mark.parametrize(("rows", "columns", "depth"), [(100, 136, 144), (512, 640, 1024)])
def test_values_on_a_gpu(rows: int, columns: int, depth: int) -> None:
    """Tiles that are not full, of which a program has several."""
    x, weight = (
        torch.randn(n, depth, device="cuda").to(torch.float8_e4m3fn).view(torch.uint8)
        for n in (rows, columns)
    )
    draw = lambda *shape: torch.rand(shape, device="cuda") + 0.5
    blocks = -(-depth // 128)
    for op, scales in (
        (fp8_rows, (draw(rows), draw(columns))),
        (fp8_tensor, (draw(), draw())),
        (fp8_block, (draw(rows, blocks), draw(-(-columns // 128), blocks))),
    ):
        exact = op(*(a.cpu() for a in (x, weight)), *(s.double().cpu() for s in scales))
        run = getattr(gemm8_gluon, op.name.partition(".")[2])
        found = run(x, weight, *scales).double().cpu()
        assert float((found - exact).norm() / exact.norm()) < 1e-3
