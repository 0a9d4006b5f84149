"""Streams in models of many layers: what is in memory anyway is not looked behind."""

from __future__ import annotations

import pytest

from stack import Pipeline
from stack.ir.builder import Builder, param
from stack.ir.node import Func
from stack.ir.types import F32, TensorType
from stack.passes.streaming.region import Region
from stack.passes.streaming.terms import Value


def residual(layers: int) -> Func:
    """`x = x + norm(x) @ w`, so many times: each norm may stream, all of them see the first x."""
    b = Builder()
    row = TensorType(F32, (48, 64))
    first = param("x", row)
    weights = [param(f"w{i}", TensorType(F32, (64, 64))) for i in range(layers)]
    x = first
    for w in weights:
        total = b.reduce(b.mul(x, x), kind="sum", axes=(1,))
        scale = b.rsqrt(b.add(total, 1e-6))
        normed = b.mul(x, b.broadcast(scale, axes=(0,), type=row))
        x = b.add(x, b.dot(normed, w, rule="m k, k n -> m n"))
    return b.func("net", [first, *weights], [x])


def looked_at(layers: int, monkeypatch: pytest.MonkeyPatch) -> int:
    """How many values the pass has asked for what they are computed from."""
    count = 0
    ask = Region.operand_values

    def counted(self: Region, value: Value) -> list[Value]:
        nonlocal count
        count += 1
        return ask(self, value)

    with monkeypatch.context() as patch:
        patch.setattr(Region, "operand_values", counted)
        Pipeline("stream").run(residual(layers))
    return count


def test_work_grows_with_layers_not_with_their_square(monkeypatch: pytest.MonkeyPatch) -> None:
    few, many, more = (looked_at(n, monkeypatch) for n in (8, 16, 24))
    assert few > 0
    assert more - many == many - few
