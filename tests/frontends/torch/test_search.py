"""Positions of values among sorted edges: eager's, also where edges are out of order or nan."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

import stack

Tensor = torch.Tensor
LIMITS = torch.tensor([math.inf, -math.inf, math.nan, 0.0, -0.0])


@pytest.mark.each
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64], ids=str)
@pytest.mark.parametrize("size", [0, 1, 2, 3, 8, 17, 1000])
def test_positions(dtype: torch.dtype, size: int, rng: np.random.Generator) -> None:
    edges = torch.from_numpy(rng.integers(-20, 20, size)).to(dtype).sort()[0]
    values = torch.from_numpy(rng.integers(-25, 25, (5, 14))).to(dtype).t()

    def program(edges: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        before = torch.searchsorted(edges, values)
        return before, torch.bucketize(values, edges, right=True, out_int32=True)

    left, right = stack.compile(program, edges, values)(edges, values)
    row, exact = edges.double().numpy(), values.double().numpy()
    assert np.array_equal(left.numpy(), np.searchsorted(row, exact))
    assert np.array_equal(right.numpy(), np.searchsorted(row, exact, side="right"))
    assert (left.dtype, right.dtype) == (torch.int64, torch.int32)


@pytest.mark.each
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("last", [1, 6, 70])
def test_steps_are_those_of_eager(side: str, last: int, rng: np.random.Generator) -> None:
    """In order with infinities and nan, in no order, and by rows."""
    drawn = torch.from_numpy(rng.standard_normal((3, 40))).float()
    drawn[:, ::9] = torch.cat([LIMITS, LIMITS])[torch.arange(15).view(3, 5) % 10]
    values = torch.from_numpy(rng.standard_normal((3, last))).float()
    values[:, 0] = torch.tensor([math.inf, math.nan, -math.inf])

    def program(edges: Tensor, values: Tensor) -> Tensor:
        return torch.searchsorted(edges, values, side=side)

    for edges in (drawn.sort()[0], drawn, drawn.sort()[0][:, :33]):
        found = stack.compile(program, edges, values)(edges, values)
        assert torch.equal(found, program(edges, values))


def test_a_sorter(rng: np.random.Generator) -> None:
    edges = torch.from_numpy(rng.standard_normal((2, 30)))
    values = torch.from_numpy(rng.standard_normal((2, 9)))

    def program(edges: Tensor, values: Tensor, order: Tensor) -> Tensor:
        return torch.searchsorted(edges, values, sorter=order)

    order = edges.argsort(-1)
    found = stack.compile(program, edges, values, order)(edges, values, order)
    assert torch.equal(found, program(edges, values, order))


def test_edges_of_no_known_number(rng: np.random.Generator) -> None:
    call = torch.compile(torch.searchsorted, backend="stack", dynamic=True)
    for size in (30, 41, 64):
        edges = torch.from_numpy(rng.standard_normal(size)).sort()[0]
        values = torch.from_numpy(rng.standard_normal(size + 7))
        values[3] = math.nan
        assert torch.equal(call(edges, values), torch.searchsorted(edges, values))


def test_reads_a_logarithm_of_the_edges() -> None:
    edges, values = torch.arange(1000.0), torch.rand(64) * 1000
    run = stack.compile(torch.searchsorted, edges, values).run
    assert "[64, 1000]" not in run["imported"].text
    assert run.coverage["native"] == run.coverage["ops"]
