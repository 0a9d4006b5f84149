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

from triton.backends.compiler import GPUTarget  # noqa: E402
from triton.compiler import ASTSource  # noqa: E402
from triton.compiler import compile as compile_kernel  # noqa: E402

from stack.errors import UsageError  # noqa: E402
from stack.ops.collectives import peer_products, peer_triton  # noqa: E402

TESTS = Path(__file__).parents[2]
RANKS = {"RANK": 1, "WORLD": 4, "PEERS": 4, "PROGRAMS": 128}
ADDRESSES = {"data": "*i64", "flags": "*i64", "turns": "*i32"}


def test_values_of_several_ranks_in_the_interpreter() -> None:
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("peer_interpreted.py"))],
        env={**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": os.pathsep.join(_paths())},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert len(found) == 4
    assert all(error < 1e-5 for error in found.values()), found


def _paths() -> list[str]:
    return [str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])]


@pytest.mark.parametrize(
    ("kernel", "operands", "sizes", "constants"),
    [
        (peer_triton.two_shot, "x out", "part half", {"PARTS": 4, "BLOCK": 8192}),
        (peer_triton.reduce_part, "x out", "part half", {"PARTS": 1, "BLOCK": 8192}),
        (peer_products.meet, "", "", {}),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_code_for_hopper(kernel: Any, operands: str, sizes: str, constants: dict[str, int]) -> None:
    given = {name: "*bf16" for name in operands.split()} | dict.fromkeys(sizes.split(), "i32")
    constants = {k: v for k, v in (RANKS | constants).items() if k in kernel.arg_names}
    full = {name: (given | ADDRESSES).get(name, "constexpr") for name in kernel.arg_names}
    options = {"num_warps": 1 if kernel is peer_products.meet else 16}
    source = ASTSource(kernel, full, constexprs=constants)
    made = compile_kernel(source, target=GPUTarget("cuda", 90, 32), options=options)
    assert made.asm["cubin"]
    assert ".sys" in made.asm["ptx"]  # flags are seen by all GPUs of the host


def test_products_that_do_not_fit() -> None:
    products = object.__new__(peer_products.PeerProducts)
    products.size, products.world, products.rank = 64, 4, 0
    with pytest.raises(UsageError, match=r"x \[4, 3\].*w \[2, 8\]"):
        products.gather_gemm(torch.zeros(4, 3), torch.zeros(2, 8))
    with pytest.raises(UsageError, match="80 bytes do not fit the 64"):
        products.gather_gemm(torch.zeros(4, 5), torch.zeros(5, 8))
    with pytest.raises(UsageError, match="6 rows do not divide by 4"):
        products.gemm_scatter(torch.zeros(6, 5), torch.zeros(5, 8))
    with pytest.raises(UsageError, match="dense"):
        products.gemm_scatter(torch.zeros(5, 4).T, torch.zeros(5, 8))
