"""The Gluon kernel of products: code for Hopper, without a GPU, and how tiles are chosen."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")
pytest.importorskip("triton")

from hopper import compiled, pointers
from triton.experimental.gluon import language as gl

from stack.ops.gemm import specialized_gluon
from stack.ops.gemm.tiles import BLOCK, HALF, Config, config_for, stages_for, stored_for

PROCESSORS = 132
BITS = {"fp8e4nv": 8, "i8": 8, "bf16": 16, "fp32": 32}


@pytest.mark.parametrize("columns", [64, 256])
@pytest.mark.parametrize(
    ("kind", "out", "scales", "is_grouped"),
    [
        ("fp8e4nv", "fp32", "blocks", False),
        ("fp8e4nv", "bf16", "blocks", False),
        ("fp8e4nv", "fp32", "rows", True),
        ("i8", "fp32", "rows", False),
        ("bf16", "bf16", "none", True),
    ],
)
def test_tiles_fit_shared_memory_and_registers(
    kind: str, out: str, scales: str, is_grouped: bool, columns: int
) -> None:
    bits, step = BITS[kind], 8 * BLOCK // BITS[kind]
    constants = {
        "STAGES": stages_for(columns, BITS[out] // 8),
        "BAND": 8,
        "GROUPED": is_grouped,
        "SCALES": scales,
    }
    tiles = {
        "x_desc": (kind, HALF, step),
        "w_desc": (kind, columns, step),
        "y_desc": (out, HALF, stored_for(columns, BITS[out] // 8)),
    }
    kernel = specialized_gluon.product_kernel
    types = pointers(kernel, f"{out} fp32 fp32 i32")
    for name, (dtype, rows, across) in tiles.items():
        layout = gl.NVMMASharedLayout(128, BITS[dtype], 2)
        types[name] = f"tensordesc<{dtype}[{rows}, {across}],{layout!r}>"
    text = compiled(kernel, types, constants, num_warps=4).asm["ptx"]
    product = {8: "e4m3.e4m3", 16: "bf16.bf16"}[bits] if kind != "i8" else "s8.s8"
    for name in (product, "setmaxnreg", "shared::cluster.global", "global.shared::cta"):
        assert name in text
    assert "ld.local" not in text


@pytest.mark.parametrize(
    ("shape", "groups", "config"),
    [
        ((4096, 4096, 4096), 1, Config(256)),  # 512 tiles, four waves
        ((128, 24576, 1536), 1, Config(256)),  # memory is what is slow
        ((64, 7168, 2048), 1, Config(64)),  # 112 tiles
        ((64, 4096, 7168), 1, Config(128, 4)),  # 32 tiles are few
        ((512, 2048, 4096), 8, Config(128)),  # groups share no sums
    ],
)
def test_tiles_are_small_or_shared_where_they_are_few(
    shape: tuple[int, int, int], groups: int, config: Config
) -> None:
    assert config_for(*shape, 2, PROCESSORS, groups) == config
