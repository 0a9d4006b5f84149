"""Streams whose places run by themselves: variances and the like, merged after the pass."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from stream_harness import prepared, streamed
from stream_inputs import inputs

import stack
from stack.ir import Func, parse, verify
from stack.ir.node import walk
from stack.passes.nest.emit import emit
from stack.passes.policies import row_streams
from stack.passes.policies.reduction_loops import ReductionLoop
from stack.passes.policies.row_streams import Walk
from stack.rewrite import Pipeline
from stack.target import as_gpu

torch = pytest.importorskip("torch")
Tensor = Any
USUAL = as_gpu(None)
GPU = replace(USUAL, rows=replace(USUAL.rows, whole_share=0))  # no row is kept whole


@pytest.fixture(autouse=True)
def short_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_streams, "ONCE", ReductionLoop(16, 1))
    monkeypatch.setattr(row_streams, "PRIVATE", ReductionLoop(32, 1, 0, True))


def layer(x: Tensor) -> Tensor:
    return torch.nn.functional.layer_norm(x, x.shape[-1:])


def variance(x: Tensor) -> Tensor:
    return x.var(-1)


def skewness(x: Tensor) -> tuple[Tensor, Tensor]:
    away = x - x.mean(-1, keepdim=True)
    return (away * away).mean(-1), (away * away * away).mean(-1)


def lowered(fn: Any, x: Tensor) -> Func:
    func, notes = streamed(prepared(stack.trace(fn, x)))
    (stream,) = (n for n in func.nodes if n.op == "stream")
    assert Walk(emit(stream)).is_private, notes
    result = Pipeline("fuse,blocks").run(func, target=GPU).func
    verify(result)
    assert parse(str(result)) is result
    return result


@pytest.mark.each
@pytest.mark.parametrize("offset", [0.0, 1e4])
@pytest.mark.parametrize("width", [2, 37, 64, 601])
@pytest.mark.parametrize("fn", [layer, variance, skewness], ids=lambda f: f.__name__)
def test_values(fn: Any, width: int, offset: float, rng: np.random.Generator) -> None:
    x = (rng.standard_normal((5, width)) + offset).astype(np.float32)
    func = lowered(fn, torch.from_numpy(x))
    with np.errstate(all="ignore"):
        got = func.interpret(x)
    want = fn(torch.from_numpy(x).double())
    pairs = zip(*(v if isinstance(v, tuple) else (v,) for v in (got, want)), strict=True)
    for have, ref in pairs:
        # the rounding of a mean of 1e4 is 6e-4; the third power has it three times
        tolerance = 5e-3 if offset else 1e-5
        np.testing.assert_allclose(have, ref.numpy(), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("width", [37, 64])
def test_infinite_values_and_nan(width: int) -> None:
    x = np.ones((4, width), np.float32)
    x[0, 3], x[1, 20], x[2, 36], x[3] = np.inf, -np.inf, np.nan, 0
    func = lowered(layer, torch.from_numpy(x))
    with np.errstate(all="ignore"):
        got = np.asarray(func.interpret(x))
    want = layer(torch.from_numpy(x)).numpy()
    np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
    np.testing.assert_allclose(got[3], want[3])


@pytest.mark.parametrize("width", [601, 608])
def test_nothing_is_reduced_in_the_loop(width: int) -> None:
    """Counts of whole tiles are one number; else each element has its own."""
    func = lowered(layer, torch.zeros(3, width))
    serial = [n for _, n in walk(func.body) if n.op == "loop" and n.attrs["kind"] == "serial"]
    inner = [n for loop in serial for n in loop.blocks[0].nodes]
    assert not any(n.op == "reduce" for n in inner)
    by_tiles = any(n.op == "div" and n.args[1].shape for n in inner)
    assert by_tiles == (width % 32 != 0)
    (first, *_) = serial
    tiles = [v for v in first.blocks[0].params[1:] if v.shape]
    assert len(tiles) == (2 if width % 32 == 0 else 3)


@pytest.mark.parametrize("name", ["softmax", "lse", "entropy", "plain", "rms"])
def test_dear_corrections_and_lone_sums_stay_together(name: str, rng: np.random.Generator) -> None:
    from stream_torch import PROGRAMS

    args = [torch.from_numpy(a) for a in inputs(name, rng)]
    func, _ = streamed(prepared(stack.trace(PROGRAMS[name], *args)))
    found = [n for n in func.nodes if n.op == "stream"]
    assert found
    assert not any(Walk(emit(stream)).is_private for stream in found)
