"""Streams whose rows are kept whole: each state is reduced after those that it reads."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from stream_harness import prepared, streamed

import stack
from stack.ir import Func, parse, verify
from stack.ir.data import round_bf16
from stack.ir.node import Node, walk
from stack.passes.policies import reduction_loops, row_streams
from stack.passes.policies.reduction_loops import ReductionLoop
from stack.passes.policies.row_streams import RowStreams
from stack.rewrite import Pipeline
from stack.target import as_gpu

torch = pytest.importorskip("torch")
Tensor = Any
USUAL = as_gpu(None)
GPU = replace(USUAL, rows=replace(USUAL.rows, whole_share=20 / 64))  # rows of 20 tiles


@pytest.fixture(autouse=True)
def short_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiles of 32 elements, one for a thread, and rows of at most 20 of them in f32."""
    for module in (reduction_loops, row_streams):
        monkeypatch.setattr(module, "WHOLE", ReductionLoop(32, 1, 0, True, True))


def layer(x: Tensor) -> Tensor:
    return torch.nn.functional.layer_norm(x, x.shape[-1:])


def softmax(x: Tensor) -> Tensor:
    y = x if x.dtype == torch.float64 else x.float()
    shifted = torch.exp(y - y.amax(-1, keepdim=True))
    return (shifted / shifted.sum(-1, keepdim=True)).to(x.dtype)


def third(x: Tensor) -> Tensor:
    away = x - x.mean(-1, keepdim=True)
    scaled = away * (away * away).mean(-1, keepdim=True).rsqrt()
    return scaled - (scaled * scaled * scaled).mean(-1, keepdim=True)


def rms(x: Tensor) -> Tensor:
    return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-5)


def variance(x: Tensor) -> Tensor:
    return x.var(-1)


def lowered(fn: Any, x: Tensor) -> tuple[Func, list[Node]]:
    func, notes = streamed(prepared(stack.trace(fn, x)))
    assert any(n.op == "stream" for n in func.nodes), notes
    result = Pipeline("fuse,blocks").run(func, target=GPU).func
    verify(result)
    assert parse(str(result)) is result
    return result, [n for _, n in walk(result.body)]


def loads(nodes: list[Node]) -> int:
    """Elements of a row that one program reads."""
    return sum(int(np.prod(n.shape)) for n in nodes if n.op == "load" and n.shape)


@pytest.mark.each
@pytest.mark.parametrize("offset", [0.0, 1e3])
@pytest.mark.parametrize("width", [2, 31, 64, 601])
@pytest.mark.parametrize("fn", [layer, softmax, third], ids=lambda f: f.__name__)
def test_values(fn: Any, width: int, offset: float, rng: np.random.Generator) -> None:
    x = (rng.standard_normal((5, width)) + offset).astype(np.float32)
    func, nodes = lowered(fn, torch.from_numpy(x))
    tiles = -(-width // 32)
    assert loads(nodes) == (32 * tiles if width > 32 else max(2, 1 << (width - 1).bit_length()))
    np.testing.assert_allclose(
        func.interpret(x), fn(torch.from_numpy(x).double()).numpy(), rtol=2e-3, atol=2e-3
    )


@pytest.mark.parametrize("fn", [layer, softmax], ids=lambda f: f.__name__)
def test_infinite_values_and_nan(fn: Any) -> None:
    x = np.ones((4, 70), np.float32)
    x[0, 3], x[1, 40], x[2, 69] = np.inf, -np.inf, np.nan
    func, _ = lowered(fn, torch.from_numpy(x))
    with np.errstate(all="ignore"):
        got = np.asarray(func.interpret(x))
    np.testing.assert_allclose(got, fn(torch.from_numpy(x)).numpy(), rtol=1e-5, equal_nan=True)


def test_held_tiles_stay_narrow(rng: np.random.Generator) -> None:
    """Each pass over what is held widens it again."""
    x = round_bf16(rng.standard_normal((3, 64)).astype(np.float32))
    func, nodes = lowered(softmax, torch.from_numpy(x).to(torch.bfloat16))
    assert sum(n.op == "again" for n in nodes) == 2 * 2
    want = softmax(torch.from_numpy(x).double()).numpy()
    np.testing.assert_allclose(np.asarray(func.interpret(x)), want, rtol=1e-2)


@pytest.mark.parametrize(
    ("fn", "width", "is_whole"),
    [(rms, 64, False), (variance, 64, False), (layer, 640, True), (layer, 641, False)],
    ids=["one state", "read once", "fits", "too long"],
)
def test_what_is_held_whole(fn: Any, width: int, is_whole: bool) -> None:
    func, _ = streamed(prepared(stack.trace(fn, torch.zeros(3, width))))
    (stream,) = (n for n in func.nodes if n.op == "stream")
    steps = [text for text, _, _ in RowStreams(stream, GPU).made().done]
    assert ("block r" in steps) == is_whole
