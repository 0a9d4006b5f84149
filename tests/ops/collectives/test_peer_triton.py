"""Kernels over peer memory without GPUs: values in Triton's interpreter, code for Hopper."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from hopper import compiled  # noqa: E402

from stack.errors import UsageError  # noqa: E402
from stack.ops.collectives import peer_products, peer_triton  # noqa: E402

TESTS = Path(__file__).parents[2]
RANKS = {"RANK": 1, "WORLD": 4, "PEERS": 4, "WIDTH": 8192, "BLOCK": 8192}
PLAIN = dict.fromkeys(("residual", "weight", "added", "eps"))
TENSORS = ("x", "out", "residual", "weight", "added")
TYPES = {
    **dict.fromkeys(("data", "words", "flags"), "*i64"),
    **dict.fromkeys(("turns", "failed"), "*i32"),
    "eps": "fp32",
}


@pytest.mark.parametrize("ranks", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_values_of_ranks_that_run_at_once_in_the_interpreter(ranks: int) -> None:
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("peer_interpreted.py")), str(ranks)],
        env={**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": os.pathsep.join(_paths())},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found.pop("said") == 0.0, "nobody says that a rank did not come"
    assert len(found) == 12
    assert all(error < 1e-5 for error in found.values()), found


def _paths() -> list[str]:
    return [str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])]


@pytest.mark.every(2)
@pytest.mark.parametrize(
    ("kernel", "constants", "dtype"),
    [
        (peer_triton.push, {"PARTS": 4, "REDUCES": False} | PLAIN, "bf16"),
        (peer_triton.push, {"PARTS": 4, "REDUCES": True} | PLAIN, "fp32"),
        (peer_triton.push, {"PARTS": 1, "REDUCES": True}, "fp16"),
        (peer_triton.pull, {"PARTS": 1, "REDUCES": True, "COLLECTS": False}, "bf16"),
        (peer_triton.pull, {"PARTS": 4, "REDUCES": True, "COLLECTS": False} | PLAIN, "fp32"),
        (peer_triton.pull, {"PARTS": 4, "REDUCES": False, "COLLECTS": True} | PLAIN, "bf16"),
        (peer_triton.pull, {"PARTS": 4, "REDUCES": True, "COLLECTS": True} | PLAIN, "bf16"),
        (peer_products.meet, {}, ""),
    ],
)
def test_code_for_hopper(kernel: Any, constants: dict[str, Any], dtype: str) -> None:
    given = {k: v for k, v in (RANKS | constants).items() if k in kernel.arg_names}
    types = TYPES | dict.fromkeys(TENSORS, f"*{dtype}")
    made = compiled(kernel, types, given, num_warps=1 if kernel is peer_products.meet else 16)
    assert made.asm["cubin"]
    told = "ld.volatile" if kernel is peer_triton.push else ".sys"  # what all GPUs of a host see
    assert told in made.asm["ptx"]
    assert "ld.local" not in made.asm["ptx"]


def test_products_that_do_not_fit() -> None:
    products = object.__new__(peer_products.PeerProducts)
    products.size, products.world, products.rank = 64, 4, 0
    products.failed = torch.zeros(1, dtype=torch.int32)
    with pytest.raises(UsageError, match=r"x \[4, 3\].*w \[2, 8\]"):
        products.gather_gemm(torch.zeros(4, 3), torch.zeros(2, 8))
    with pytest.raises(UsageError, match="80 bytes do not fit the 64"):
        products.gather_gemm(torch.zeros(4, 5), torch.zeros(5, 8))
    with pytest.raises(UsageError, match="6 rows do not divide by 4"):
        products.gemm_scatter(torch.zeros(6, 5), torch.zeros(5, 8))
    with pytest.raises(UsageError, match="dense"):
        products.gemm_scatter(torch.zeros(5, 4).T, torch.zeros(5, 8))
