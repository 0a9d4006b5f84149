"""Products of warpgroups: descriptors, swizzles and waits, as the printed text has them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cuda_emulator import COMPILER, emulate
from stream_rows import compare, lowered
from stream_variants import normal

import stack
from stack.backends.cuda import BACKEND, nvrtc
from stack.backends.cuda.compiler import inspect_program
from stack.ir.cost import total
from stack.ir.node import Node, walk
from stack.run.compile import lower
from stack.run.record import Run
from stack.target import load

torch = pytest.importorskip("torch")
Tensor = Any


def kernel_of(a: Tensor, b: Tensor, rule: str, schedule: str) -> Node:
    """The kernel of a product on threads that follows a schedule."""
    func = stack.trace(lambda a, b: torch.einsum(rule, a, b), a, b)
    made = lower(
        func, BACKEND, Run("", "", "cuda"), target=load("sm_90"), schedules={"*": schedule}
    )
    (kernel,) = (n for n in made.nodes if n.op == "kernel")
    return kernel


@pytest.mark.parametrize("machine", ["sm_80", "sm_90"])
def test_operations_of_a_kernel_are_those_of_its_product(machine: str) -> None:
    x = torch.zeros(512, 512, dtype=torch.bfloat16)
    made = lower(
        stack.trace(lambda a, b: a @ b, x, x), BACKEND, Run("", "", "cuda"), target=load(machine)
    )
    (kernel,) = (n for n in made.nodes if n.op == "kernel")
    assert 1 <= total(kernel.blocks[0].nodes).flops / (2 * 512**3) < 1.1  # and of addresses


# orders of both operands; lines of 32, 64 and 128 bytes, and several of them in a row; warpgroups
# below and beside each other; two instructions below each other; fewer iterations than stages
CASES = [
    ("mk,kn->mn", "m=64 n=64 k=64 warps=4 stages=3", "bfloat16"),
    ("mk,nk->mn", "m=64 n=64 k=16 warps=4 stages=3", "bfloat16"),
    ("km,kn->mn", "m=64 n=32 k=32 warps=4 stages=4", "float16"),
    ("km,nk->mn", "m=128 n=64 k=64 warps=8 stages=2", "bfloat16"),
    ("mk,nk->mn", "m=64 n=128 k=128 warps=8 stages=2", "float16"),
    ("mk,kn->mn", "m=128 n=128 k=64 warps=4 stages=6", "bfloat16"),
]


@pytest.mark.every(2)
@pytest.mark.skipif(COMPILER is None, reason="needs g++")
@pytest.mark.parametrize(("rule", "schedule", "dtype"), CASES)
def test_values(
    rule: str, schedule: str, dtype: str, rng: np.random.Generator, tmp_path: Path
) -> None:
    sizes = {"m": 128, "n": 128, "k": 320}
    a, b = (
        normal(rng, *(sizes[x] for x in side)).to(getattr(torch, dtype))
        for side in rule.split("->")[0].split(",")
    )
    kernel = kernel_of(a, b, rule, schedule)
    assert any(n.op == "warpgroup_mma" for _, n in walk(kernel.blocks[0]))
    arrays = [(x.float() if dtype == "bfloat16" else x).numpy() for x in (a, b)]
    found = emulate(kernel, arrays, tmp_path)
    compare(found[0].reshape(128, 128), torch.einsum(rule, a.double(), b.double()), 1e-2)


def test_sums_wait_for_the_turn_after(rng: np.random.Generator) -> None:
    """One product is asynchronous while the next iteration begins; all are done after the loop."""
    a, b = (normal(rng, 128, 1024).to(torch.bfloat16) for _ in range(2))
    kernel = kernel_of(a, b, "mk,nk->mn", "m=64 n=64 k=64 warps=4 stages=3")
    waits = [n.attrs["pending"] for _, n in walk(kernel.blocks[0]) if n.op == "warpgroup_wait"]
    assert sorted(waits) == [0, 1]
    allocs = [n for _, n in walk(kernel.blocks[0]) if n.op == "alloc"]
    swizzled = [n for n in allocs if "swizzle" in n.attrs]
    assert [n.attrs["swizzle"] for n in swizzled] == [128, 128]
    # one more place than stages: what is under way still reads the one before
    assert [n.shape for n in swizzled] == [(4 * 64, 64), (4 * 64, 64)]


def test_an_old_gpu_has_warps_only(rng: np.random.Generator) -> None:
    args = [normal(rng, 1, 2, 128, 64).to(torch.bfloat16) for _ in range(3)]
    attention = torch.nn.functional.scaled_dot_product_attention
    for target, op in (("sm_80", "mma_sync"), ("sm_90", "warpgroup_mma")):
        _, (kernel,) = lowered(lambda q, k, v: attention(q, k, v), args, target)
        found = {n.op for _, n in walk(kernel.blocks[0])} & {"mma_sync", "warpgroup_mma"}
        assert found == {op}


@pytest.mark.skipif(nvrtc.missing_compiler() is not None, reason="needs NVRTC")
@pytest.mark.parametrize(("target", "word"), [("sm_80", "mma.sync"), ("sm_90", "wgmma.mma_async")])
def test_machine_code(target: str, word: str, rng: np.random.Generator) -> None:
    """Attention and a product assemble for both, without registers in memory."""

    def both(q: Tensor, k: Tensor, v: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True), q @ w

    args = [normal(rng, 4, 512, 64).to(torch.bfloat16) for _ in range(3)]
    func = stack.trace(both, *args, normal(rng, 64, 256).to(torch.bfloat16))
    made = lower(func, BACKEND, Run("", "", "cuda"), target=load(target))
    kernels, artifacts = inspect_program(made, {"target": target, "cache": False})
    assert word in str(artifacts["ptx"]() if callable(artifacts["ptx"]) else artifacts["ptx"])
    generated = [k for k in kernels if k.kind == "generated"]
    assert generated and not any(k.resources["spilled"] for k in generated)
