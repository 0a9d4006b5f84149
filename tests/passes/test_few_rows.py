"""Streams of few rows write only their states; streams of many rows write the rows too."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from stream_harness import prepared

import stack
from stack.ir import Func
from stack.rewrite import Pipeline
from stack.target import as_gpu

torch = pytest.importorskip("torch")
GPU = as_gpu(None)


def norm(x: Any) -> Any:
    return torch.nn.functional.instance_norm(x)


def streamed(shape: tuple[int, ...]) -> Func:
    func = prepared(stack.trace(norm, torch.empty(shape, device="meta")))
    return Pipeline("stream{min_axis=32769,loops=blocks}").run(func, target=GPU).func


def widest(func: Func) -> int:
    """The elements of the largest result of a stream."""
    (stream,) = [n for n in func.nodes if n.op == "stream"]
    return max(t.size for t in stream.types)


def test_many_rows_are_written_by_the_stream() -> None:
    assert widest(streamed((64, 64, 512, 512))) == 64 * 64 * 512 * 512


def test_few_rows_are_written_by_elementwise_kernels() -> None:
    func = streamed((1, 4, 2048, 2048))
    assert widest(func) == 4
    steps = "split_reductions,fuse,coalesce,blocks"
    made = Pipeline(steps).run(func, target=GPU).func
    assert [n.op for n in made.nodes].count("kernel") == 3  # parts, their merge, rows


def test_values(rng: np.random.Generator) -> None:
    x = (rng.standard_normal((1, 2, 256, 256)) + 3).astype(np.float32)
    func = streamed(x.shape)
    assert widest(func) == 2
    exact = norm(torch.from_numpy(x).double()).numpy()
    np.testing.assert_allclose(np.asarray(func.interpret(x)), exact, rtol=1e-3, atol=1e-4)
