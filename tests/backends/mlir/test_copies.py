"""Transposes through registers: words, short elements in words, words that are made short."""

from __future__ import annotations

from typing import Any

import pytest

import stack

torch = pytest.importorskip("torch")


@pytest.mark.each
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


@pytest.mark.each
@pytest.mark.parametrize("rows", [2, 3, 5, 8, 15, 31])
@pytest.mark.parametrize("columns", [2, 3, 16, 65])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "int8", "float64"])
def test_few_rows_take_turns(dtype: str, rows: int, columns: int) -> None:
    """Parts of a vector of the target, of 16, 32 or 64 elements; also fewer columns than that."""
    x = 10 * torch.randn(2, rows, columns, generator=torch.Generator().manual_seed(0))
    x = x.to(getattr(torch, dtype))
    compiled = stack.compile(lambda x: x.mT.contiguous(), x, backend="mlir")
    assert torch.equal(compiled(x), x.mT)


def test_turned_and_made_short() -> None:
    x = torch.randn(2, 64, 96, generator=torch.Generator().manual_seed(0))

    def turned(x: Any) -> Any:
        return x.mT.to(torch.bfloat16).contiguous()

    compiled = stack.compile(turned, x, backend="mlir")
    assert torch.equal(compiled(x), turned(x))
    assert "vector.shuffle" in compiled.run["mlir"].text
