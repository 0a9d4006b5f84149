"""Kernels that keep 16-bit floats in f32 round them where a comparison tells something of them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import stack

Pair = tuple[torch.Tensor, torch.Tensor]


def smallest(x: torch.Tensor, y: torch.Tensor) -> Pair:
    p = x[:, :, None] * y[:, None, :]
    m = p.amin((0, 2))
    return m, (p == m[:, None]).sum((0, 2))


def in_a_row(x: torch.Tensor, y: torch.Tensor) -> Pair:
    p = x * 0.3 + y
    m = p.amax(-1, keepdim=True)
    return m, (p >= m).float()


def others(x: torch.Tensor, y: torch.Tensor) -> Pair:
    p = (x * y).t()
    m = p.amax(0)
    return m, (p != m).sum(0)


def kept_of_scores(x: torch.Tensor, y: torch.Tensor) -> Pair:
    scores = (x @ y.t()) * 0.3
    least = scores.topk(4, -1).values[:, -1:]
    return least, torch.softmax(scores.masked_fill(scores < least, float("-inf")), -1) @ y


PROGRAMS: dict[str, Callable[[torch.Tensor, torch.Tensor], Pair]] = {
    "smallest": smallest,
    "in a row": in_a_row,
    "others": others,
    "kept of scores": kept_of_scores,
}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("program", PROGRAMS)
def test_a_value_equals_itself_in_memory(program: str, dtype: torch.dtype) -> None:
    x, y = torch.randn(2, 37, 8).to(dtype)
    if program == "kept of scores":  # products of small integers are exact: scores round once
        x, y = (torch.round(2 * v) for v in (x, y))
    fn = PROGRAMS[program]
    for got, want in zip(stack.compile(fn, x, y)(x, y), fn(x, y), strict=True):
        torch.testing.assert_close(got, want, rtol=2e-2, atol=2e-2)


def test_a_product_that_is_too_large_for_its_type_is_infinite() -> None:
    x = torch.tensor([300.0, 2.0, -400.0]).half()

    def fn(x: torch.Tensor) -> torch.Tensor:
        return torch.isinf(x * x)

    assert stack.compile(fn, x)(x).tolist() == [True, False, True]
