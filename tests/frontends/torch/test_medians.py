"""Medians that pass over nan: eager's values, at a place that holds them."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

import stack


@pytest.mark.each
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("size", [1, 2, 7, 64, 101])
def test_nanmedian(dtype: torch.dtype, size: int, rng: np.random.Generator) -> None:
    drawn = rng.standard_normal((size, 12))
    drawn[:, 3:9][rng.random((size, 6)) < [0.1, 0.3, 0.5, 0.7, 0.9, 0.95]] = math.nan
    drawn[:, 5:7][rng.random((size, 2)) < 0.6] = -math.inf  # as low as what goes below
    drawn[:, 9], drawn[:, 10], drawn[:, 11] = math.nan, -math.inf, math.inf
    x = torch.from_numpy(drawn).to(dtype).t()  # strided rows

    def program(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        value, place = torch.nanmedian(x, 1)
        return value, place, torch.nanmedian(x)

    values, places, whole = stack.compile(program, x)(x)
    wanted, _, of_all = program(x)
    for row, value in zip(x.double().numpy(), values.double().numpy(), strict=True):
        numbers = np.sort(row[~np.isnan(row)])
        exact = numbers[(len(numbers) - 1) // 2] if len(numbers) else math.nan
        np.testing.assert_equal(value, exact)
    torch.testing.assert_close(values, wanted, rtol=0, atol=0, equal_nan=True)
    torch.testing.assert_close(whole, of_all, rtol=0, atol=0, equal_nan=True)
    there = x.gather(1, places[:, None])[:, 0]
    torch.testing.assert_close(there, wanted, rtol=0, atol=0, equal_nan=True)
    assert places[9] == 0


def test_places_where_no_values_are_equal(rng: np.random.Generator) -> None:
    x = torch.from_numpy(rng.permutation(5 * 33).reshape(5, 33)).float()
    x[1, ::3], x[2, :20] = math.nan, math.nan
    found = stack.compile(torch.nanmedian, x, 1)(x, 1)
    assert torch.equal(found[1], torch.nanmedian(x, 1)[1])


def test_the_middle_alone_is_chosen() -> None:
    text = stack.compile(torch.nanmedian, torch.randn(40)).run["canonical"].text
    assert "first=20, num_keys=1, start=19" in text
