"""Transposes through registers: words, short elements in words, words that are made short."""

from __future__ import annotations

from typing import Any

import pytest

import stack

torch = pytest.importorskip("torch")


@pytest.mark.parametrize("shape", [(2, 64, 96), (2, 33, 65), (1, 17, 40)])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "int8", "float64"])
def test_turned(dtype: str, shape: tuple[int, ...]) -> None:
    x = (10 * torch.randn(shape, generator=torch.Generator().manual_seed(0))).to(
        getattr(torch, dtype)
    )

    def turned(x: Any) -> Any:
        return x.mT.contiguous()

    compiled = stack.compile(turned, x, backend="mlir")
    assert torch.equal(compiled(x), turned(x))


def test_turned_and_made_short() -> None:
    x = torch.randn(2, 64, 96, generator=torch.Generator().manual_seed(0))

    def turned(x: Any) -> Any:
        return x.mT.to(torch.bfloat16).contiguous()

    compiled = stack.compile(turned, x, backend="mlir")
    assert torch.equal(compiled(x), turned(x))
    assert "vector.shuffle" in compiled.run["mlir"].text
