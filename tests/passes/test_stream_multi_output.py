"""Rows that a stream computes and the block returns are results of the stream."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from stream_harness import prepared, streamed

import stack
from stack.ir import Func, verify
from stack.rewrite import Pipeline

torch = pytest.importorskip("torch")
Tensor = Any


def norm(total: Tensor) -> Tensor:
    return total * torch.rsqrt((total * total).mean(-1, keepdim=True) + 1e-5)


def residual(x: Tensor, r: Tensor) -> tuple[Tensor, Tensor]:
    total = x + r
    return norm(total), total


def used_after(x: Tensor, r: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    total = x + r
    return norm(total), total, torch.sin(total)


def spread(x: Tensor, r: Tensor) -> tuple[Tensor, Tensor]:
    total = x * r[:1]
    return torch.softmax(total, -1), total


def kept_inside(x: Tensor, r: Tensor) -> Tensor:
    return norm(x + r)


def read_by_the_stream(x: Tensor, r: Tensor) -> tuple[Tensor, Tensor]:
    total = x + r
    return norm(total) * total.sort(dim=0).values[:1], total


def sums_only(x: Tensor, r: Tensor) -> tuple[Tensor, Tensor]:
    total = x + r
    return (total * total).sum(-1), total


def streams(fn: Callable[..., Any], width: int = 130) -> tuple[Func, list[int]]:
    """The function with streams, and how many results each has that are rows."""
    args = [torch.zeros(3, width), torch.zeros(3, width)]
    func = streamed(prepared(stack.trace(fn, *args)), "min_axis=100")[0]
    verify(func)
    found = [n.blocks[2].results for n in func.nodes if n.op == "stream"]
    return func, [sum(r.tensor.rank == 2 and r.shape[-1] == width for r in f) for f in found]


@pytest.mark.parametrize(
    ("fn", "rows"),
    [(residual, 2), (used_after, 2), (spread, 2), (kept_inside, 1), (read_by_the_stream, 1)],
)
def test_rows_of_a_stream(fn: Callable[..., Any], rows: int, rng: np.random.Generator) -> None:
    func, found = streams(fn)
    assert set(found) == {rows}
    arrays = [rng.standard_normal((3, 130)).astype(np.float32) for _ in range(2)]
    want = fn(*(torch.from_numpy(a).double() for a in arrays))
    for passes in ("canonicalize", "fuse,blocks"):
        made = Pipeline(passes).run(func).func
        got = made.interpret(*arrays)
        pairs = zip(*(v if isinstance(v, tuple) else (v,) for v in (got, want)), strict=True)
        for have, ref in pairs:
            np.testing.assert_allclose(have, ref.numpy(), rtol=1e-4, atol=1e-5)


def test_one_kernel_writes_both() -> None:
    func, _ = streams(residual)
    made = Pipeline("fuse,blocks").run(func).func
    assert [n.op for n in made.nodes].count("kernel") == 1


def test_a_stream_that_writes_no_rows_stays_so() -> None:
    assert all(rows == 0 for rows in streams(sums_only)[1])
