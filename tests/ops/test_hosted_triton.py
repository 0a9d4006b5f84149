"""Triton kernels of hosted operators: values in the interpreter, code for Hopper without a GPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hosted_cases import own
from interpreted_process import interpreted

pytest.importorskip("torch")
pytest.importorskip("triton")

import hopper

from stack.hosted import find
from stack.ops.attention import decode_triton, flash_backward_triton, mla_triton
from stack.ops.loss import linear_triton, rows_triton
from stack.ops.norm import rows_triton as norms
from stack.ops.scan import (
    carried_triton,
    chunkwise_features_backward_triton,
    chunkwise_features_triton,
    chunkwise_triton,
    gated_lookback_triton,
    lookback_triton,
    selective_triton,
)

FLOATS = dict.fromkeys(("eps", "limit", "scale"), "fp32")


@pytest.mark.parametrize("more", [[], pytest.param(["--all"], marks=pytest.mark.slow)])
def test_values_in_the_interpreter(more: list[str]) -> None:
    found = interpreted(Path(__file__).with_name("hosted_kernels.py"), *more)
    # Gluon and CUDA C++ have no interpreter
    mine = {n: [k.name for k in find(n).kernels if k.device == "cuda"] for n in own()}
    written = {n for n, names in mine.items() if set(names) - {"gluon", "nvrtc"}}
    assert written == {name.partition("-")[0] for name in found if "-" in name}
    assert not {k: v for k, v in found.items() if not v < (5e-3 if "float16" in k else 1e-5)}


def compiled(
    kernel: Any,
    pointers: str,
    constants: dict[str, int],
    tiles: dict[str, str] | None = None,
    **options: int,
) -> Any:
    """`pointers`: the element type of each parameter whose name ends in `_ptr`, in order."""
    types = FLOATS | hopper.pointers(kernel, pointers) | (tiles or {})
    return hopper.compiled(kernel, types, constants, **options)


@pytest.mark.parametrize(
    ("kernel", "pointers"),
    [
        (norms.rms_norm_kernel, "bf16 bf16 bf16"),
        (norms.add_rms_norm_kernel, "bf16 bf16 bf16 bf16 bf16"),
        (norms.layer_norm_kernel, "bf16 bf16 bf16 bf16"),
        (norms.softmax_kernel, "bf16 bf16"),
        (rows_triton.cross_entropy_kernel, "bf16 i64 fp32"),
    ],
    ids=["rms_norm", "add_rms_norm", "layer_norm", "softmax", "cross_entropy"],
)
def test_rows_stay_in_registers(kernel: Any, pointers: str) -> None:
    made = compiled(kernel, pointers, {"COLUMNS": 4096}, num_warps=8)
    assert made.asm["cubin"]
    assert "ld.local" not in made.asm["ptx"]


def test_a_linear_loss_runs_on_tensor_cores() -> None:
    config = linear_triton.CONFIG
    tile = {
        "ROWS": config.rows, "CLASSES": config.classes, "DEPTH": config.depth,
        "GROUP": config.group,
    }  # fmt: skip
    tiles = {
        "x_desc": f"tensordesc<bf16[{config.rows}, {config.depth}]>",
        "w_desc": f"tensordesc<bf16[{config.classes}, {config.depth}]>",
    }
    made = compiled(
        linear_triton.linear_cross_entropy_kernel,
        "i64 fp32 fp32 fp32",
        tile,
        tiles,
        num_warps=config.warps,
        num_stages=config.stages,
    )
    assert "wgmma.mma_async" in made.asm["ptx"]


@pytest.mark.parametrize("width", [64, 128])
@pytest.mark.parametrize("which", ["keys", "queries"])
def test_the_gradient_of_attention_runs_on_tensor_cores(which: str, width: int) -> None:
    configs = {"keys": flash_backward_triton.KEYS, "queries": flash_backward_triton.QUERIES}
    config = configs[which][width]
    kernel: Any = getattr(flash_backward_triton, f"{which}_kernel")
    kept = ("k_desc", "v_desc", "dk_desc", "dv_desc") if which == "keys" else (
        "q_desc", "told_desc", "dq_desc"
    )  # fmt: skip
    tiles = {
        n: f"tensordesc<bf16[1, {config.kept if n in kept else config.walked}, {width}]>"
        for n in kernel.arg_names
        if n.endswith("_desc")
    }
    constants = {
        "SHARE": 1, "KEPT": config.kept, "WALKED": config.walked, "WIDTH": width, "CAUSAL": True,
    }  # fmt: skip
    made = compiled(
        kernel, "fp32 fp32", constants, tiles, num_warps=config.warps, num_stages=config.stages
    )
    assert "wgmma.mma_async" in made.asm["ptx"]
    assert "ld.local" not in made.asm["ptx"]


@pytest.mark.parametrize("room", [0, 16])
def test_decoding_runs_on_tensor_cores(room: int) -> None:
    constants = {
        "SHARE": 4, "ROWS": 16, "COLUMNS": decode_triton.COLUMNS, "ROOM": room, "WIDTH": 128,
        "SPLITS": 16,
    }  # fmt: skip
    types = "bf16 bf16 bf16 i32 i32 fp32 fp32"
    made = compiled(decode_triton.split_kernel, types, constants, num_warps=4, num_stages=3)
    assert "mma.sync" in made.asm["ptx"]
    assert "ld.local" not in made.asm["ptx"]


def test_latent_keys_are_keys_and_values_on_tensor_cores() -> None:
    constants = {
        "ROWS": mla_triton.HEADS, "COLUMNS": mla_triton.COLUMNS, "WIDTH": 512, "ROPE": 64,
        "SPLITS": 8,
    }  # fmt: skip
    types = "bf16 bf16 bf16 bf16 fp32 fp32"
    made = compiled(mla_triton.split_kernel, types, constants, num_warps=8, num_stages=2)
    assert "wgmma.mma_async" in made.asm["ptx"]
    assert "ld.local" not in made.asm["ptx"]


@pytest.mark.parametrize(
    ("kernel", "pointers", "constants"),
    [
        (
            carried_triton.gated_kernel,
            "bf16 bf16 bf16 bf16",
            {"RUNS": 16, "STEPS": 4, "CHANNELS": 64, "STAGES": 3},
        ),
        (
            carried_triton.gated_gradient_kernel,
            "bf16 " * 7,
            {"RUNS": 16, "STEPS": 4, "CHANNELS": 64, "STAGES": 3},
        ),
        (
            gated_lookback_triton.gated_kernel,
            "bf16 bf16 bf16 bf16 u64 u64 i32",
            {
                "RUNS": 16,
                "STEPS": 4,
                "CHANNELS": 64,
                "WINDOW": gated_lookback_triton.BACKWARD.window,
                "TILES": 4,
                "STAGES": 3,
            },
        ),
        (
            gated_lookback_triton.gated_gradient_kernel,
            "bf16 " * 7 + "u64 u64 i32",
            {
                "RUNS": 16,
                "STEPS": 4,
                "CHANNELS": 64,
                "WINDOW": gated_lookback_triton.BACKWARD.window,
                "TILES": 4,
                "STAGES": 3,
            },
        ),
        (
            lookback_triton.inclusive_kernel,
            "fp32 fp32 u64 i32",
            {"COLUMNS": lookback_triton.COLUMNS, "WINDOW": lookback_triton.WINDOW},
        ),
        (
            lookback_triton.inclusive_kernel,
            "fp32 fp32 u64 i32",
            {"COLUMNS": 1024, "WINDOW": lookback_triton.WINDOW, "tiles": 1},
        ),
        (selective_triton.selective_kernel, "bf16 " * 9, {"CHANNELS": 16, "STATES": 16}),
    ],
    ids=["gated", "gated_gradient", "few", "few_gradient", "look_back", "one_tile", "selective"],
)
def test_what_scans_carry_stays_in_registers(
    kernel: Any, pointers: str, constants: dict[str, int]
) -> None:
    made = compiled(kernel, pointers, constants, num_warps=4)
    assert made.asm["cubin"]
    assert "ld.local" not in made.asm["ptx"]


@pytest.mark.parametrize(
    ("kernel", "pointers", "constants"),
    [
        (chunkwise_features_triton.decayed_kernel, "bf16 " * 6 + "fp32", {"FEATURES": 128}),
        (
            chunkwise_features_triton.carried_kernel,
            "bf16 bf16 bf16 bf16 fp32 bf16 bf16 bf16 bf16",
            {
                "FEATURES": 128,
                "COLUMNS": chunkwise_features_triton.CONFIG.columns,
                "STAGES": chunkwise_features_triton.CONFIG.stages,
                "READ": True,
                "KEPT": True,
                "REVERSED": True,
            },
        ),
        (
            chunkwise_features_backward_triton.gradient_kernel,
            "bf16 " * 11,
            {"FEATURES": chunkwise_features_backward_triton.FEATURES, "COLUMNS": 128},
        ),
    ],
    ids=["decayed", "carried", "gradient"],
)
def test_gated_linear_attention_runs_on_tensor_cores(
    kernel: Any, pointers: str, constants: dict[str, int]
) -> None:
    constants = {"CHUNK": chunkwise_features_triton.CHUNK, **constants}
    made = compiled(kernel, pointers, constants, num_warps=4)
    assert "wgmma.mma_async" in made.asm["ptx"]


@pytest.mark.parametrize("is_ssd", [True, False], ids=["ssd", "retention"])
def test_chunks_of_a_recurrence_run_on_tensor_cores(is_ssd: bool) -> None:
    constants = {
        "IS_SSD": is_ssd, "CHUNK": chunkwise_triton.CHUNK, "FEATURES": 128, "COLUMNS": 64,
        "STAGES": 2,
    }  # fmt: skip
    made = compiled(chunkwise_triton.decayed_kernel, "bf16 " * 9, constants, num_warps=4)
    assert "wgmma.mma_async" in made.asm["ptx"]
