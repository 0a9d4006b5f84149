"""Streams as kernels of threads of a GPU, and what their values are compared with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from stream_harness import prepared, streamed

import stack
from stack.ir import Func, Node, parse, verify
from stack.rewrite import Pipeline
from stack.target import load

torch = pytest.importorskip("torch")
Tensor = Any


def lowered(
    program: Callable[..., Any], args: list[Tensor], target: str = "sm_90"
) -> tuple[Func, list[Node]]:
    """The function with its streams as kernels, and these."""
    func, notes = streamed(prepared(stack.trace(program, *args)))
    found = [n for n in func.nodes if n.op == "stream"]
    assert found, notes
    made = Pipeline("blocks,distribute_gpu").run(func, target=load(target)).func
    verify(made)
    assert parse(str(made)) is made
    return made, [n for n in made.nodes if n.op == "kernel"]


def compare(found: Any, want: Any, rtol: float) -> None:
    pairs = zip(*(f if isinstance(f, tuple | list) else (f,) for f in (found, want)), strict=True)
    for got, ref in pairs:
        wide = ref.double().numpy()
        largest = float(np.max(np.abs(wide[np.isfinite(wide)]), initial=1e-30))
        np.testing.assert_allclose(
            np.asarray(got, np.float64), wide, rtol=rtol, atol=rtol * largest
        )


def softmax(x: Tensor) -> Tensor:
    return torch.softmax(x, -1)


def lse(x: Tensor) -> Tensor:
    return torch.logsumexp(x, -1)


def layer(x: Tensor, gain: Tensor, bias: Tensor) -> Tensor:
    return torch.nn.functional.layer_norm(x, (x.shape[-1],), gain, bias)


def two_products(x: Tensor, first: Tensor, gain: Tensor, bias: Tensor, second: Tensor) -> Tensor:
    """A product of a normed product: the weight of the last is scaled and summed."""
    return layer(x @ first, gain, bias) @ second.mT
