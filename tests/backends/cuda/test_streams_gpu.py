"""Streams of rows on a GPU against double precision: `pytest -m gpu tests/backends/cuda`."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from stream_rows import compare, layer, lse, softmax
from stream_variants import normal

import stack

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.gpu


def run(program: Callable[..., Any], args: list[Any]) -> Any:
    """Results of the cuda backend, whose kernels are one stream."""
    compiled = stack.compile(program, *(a.cuda() for a in args), backend="cuda")
    text = compiled.run["streamed"].text
    assert text.count("= stream(") == 1, text
    assert {k.kind for k in compiled.run.kernels} == {"generated"}
    return compiled(*(a.cuda() for a in args)).float().cpu().numpy()


# vectors, single elements (an odd length), and a rest of a step
@pytest.mark.parametrize("size", [70000, 70001, 131072])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("program", [lse, softmax, layer])
def test_rows(program: Callable[..., Any], dtype: str, size: int, rng: np.random.Generator) -> None:
    args = [normal(rng, 9, size), normal(rng, size), normal(rng, size)]
    args = [a.to(getattr(torch, dtype)) for a in args[: 3 if program is layer else 1]]
    want = program(*(a.double() for a in args))
    compare(run(program, args), want, 1e-5 if dtype == "float32" else 1e-2)


def test_large_offsets_infinities_and_nan(rng: np.random.Generator) -> None:
    x = normal(rng, 7, 40000)
    x[0] += 1e4
    x[1], x[2, :20000], x[3, 1:] = -math.inf, -math.inf, -math.inf
    x[4, 7], x[5, 39000] = math.inf, math.nan
    compare(run(lse, [x]), lse(x.double()), 1e-5)
