"""Streams as CUDA C++: the printed text itself, run on a CPU."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cuda_emulator import COMPILER, emulate
from stream_rows import compare, layer, lowered, lse, softmax, two_products
from stream_variants import normal

torch = pytest.importorskip("torch")


@pytest.mark.every(2)
@pytest.mark.skipif(COMPILER is None, reason="needs g++")
@pytest.mark.parametrize(
    ("size", "dtype"), [(40, "float32"), (4100, "float32"), (2056, "bfloat16")]
)
@pytest.mark.parametrize("program", [lse, softmax, layer])
def test_the_text(
    program: Callable[..., Any], size: int, dtype: str, rng: np.random.Generator, tmp_path: Path
) -> None:
    args = [normal(rng, 3, size), normal(rng, size), normal(rng, size)]
    args = [a.to(getattr(torch, dtype)) for a in args[: 3 if program is layer else 1]]
    _, (kernel,) = lowered(program, args)
    found = emulate(kernel, [a.float().numpy() for a in args], tmp_path)
    want = program(*(a.double() for a in args)).reshape(found[0].shape)
    compare(found[0], want, 1e-5 if dtype == "float32" else 1e-2)


@pytest.mark.skipif(COMPILER is None, reason="needs g++")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_attention_of_two_loops(dtype: str, rng: np.random.Generator, tmp_path: Path) -> None:
    """The second loop reuses the shared memory of the copies of the first one."""

    def causal(q: Any, k: Any, v: Any) -> Any:
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)

    args = [normal(rng, 1, 1, 128, 64).to(getattr(torch, dtype)) for _ in range(3)]
    _, (kernel,) = lowered(causal, args)
    arrays = [a.float().numpy().reshape(p.shape) for a, p in zip(args, kernel.args, strict=True)]
    found = emulate(kernel, arrays, tmp_path)
    want = causal(*(a.double() for a in args)).reshape(found[0].shape)
    compare(found[0], want, 1e-5 if dtype == "float32" else 1e-2)


@pytest.mark.skipif(COMPILER is None, reason="needs g++")
def test_two_products_around_a_norm(rng: np.random.Generator, tmp_path: Path) -> None:
    args = [normal(rng, *s) for s in ((96, 64), (64, 96), (96,), (96,), (32, 96))]
    func, (kernel,) = lowered(two_products, args)
    given = dict(zip(func.params, args, strict=True))
    found = emulate(kernel, [given[a].numpy() for a in kernel.args], tmp_path)
    want = two_products(*(a.double() for a in args))
    compare(found[0], want, 1e-5)
