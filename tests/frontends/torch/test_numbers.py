"""Numbers in calls of torch: how they round, what they are cut to, and what times 0 is."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import stack

Tensor = torch.Tensor
Function = Callable[..., Any]


def from_torch(fn: Function, *args: Tensor) -> Function:
    return torch.compile(fn, backend="stack", fullgraph=True, dynamic=False)


ENTRIES = pytest.mark.parametrize("entry", [stack.compile, from_torch], ids=["stack", "torch"])
HALVES = pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)


def progressions(x: Tensor) -> list[Tensor]:
    ends = ((0, 6.5, 2.5), (0.9, 9.9, 1.7), (-3.7, 5.5, 1.5), (5, -3.3, -1.9), (-0.9, 3.9, 1.2))
    kinds = (torch.int64, torch.int32, torch.uint8, torch.float32)
    return [torch.arange(*e, dtype=d) + x.to(d) for e in ends for d in kinds]


def thresholds(x: Tensor) -> list[Tensor]:
    return [F.threshold(x.to(d), -1.5, 7) for d in (torch.int64, torch.int8, torch.float32)]


@pytest.mark.each
@ENTRIES
@pytest.mark.parametrize("program", [progressions, thresholds])
def test_integers_cut_fractions_first(entry: Function, program: Function) -> None:
    x = torch.tensor([-3, -2, -1, 0, 1]) if program is thresholds else torch.tensor(0)
    for found, want in zip(entry(program, x)(x), program(x), strict=True):
        torch.testing.assert_close(found, want, rtol=0, atol=0)


def products(a: Tensor, v: Tensor, wide: Tensor, bias: Tensor) -> list[Tensor]:
    """Products of nan times 0, and sums of nan times 0."""
    made: list[Tensor] = []
    one = torch.ones_like
    for alpha, beta in ((0, 1), (0, 2), (0, 0), (1, 0)):
        x, y, b = (a, v, bias * 0 + 1) if alpha == 0 else (one(a), one(v), bias)
        at = {"alpha": alpha, "beta": beta}
        w = wide if alpha == 0 else one(wide)
        made += [
            torch.addmm(b, x, one(a), **at),
            torch.addmv(b[0], x, one(v), **at),
            torch.addbmm(b, x[None], one(a)[None], **at),
            torch.baddbmm(b[None], x[None], one(a)[None], **at),
            torch.baddbmm(b[:1, :1], w[None], one(w)[None], **at),
            torch.addr(b, y, one(v), **at),
        ]
    return made


@pytest.mark.each
@ENTRIES
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_products_of_nan_times_zero(entry: Function, dtype: torch.dtype) -> None:
    nan = [torch.full(s, math.nan, dtype=dtype) for s in ((2, 2), (2,), (16, 16))]
    args = (*nan, torch.full((2, 2), math.nan, dtype=dtype).nan_to_num(1.0))
    for found, want in zip(entry(products, *args)(*args), products(*args), strict=True):
        torch.testing.assert_close(found, want, rtol=0, atol=0, equal_nan=True)


def sums(x: Tensor, y: Tensor) -> list[Tensor]:
    tenth = torch.tensor(0.1)
    return [
        *(x + 0.1, 0.1 + x, x - 0.1, 0.1 - x, x + 257, 2049 - x, x + tenth, x - tenth.double()),
        *(x * 0.1, x * 257, x / 0.3, 0.3 / x, x * tenth, x / tenth, tenth * x),
        *(torch.fmod(x, 0.3), x % 0.3, x // 0.3, torch.atan2(x, tenth)),
        *((x + 0.1 - x == 0.1).to(x.dtype), (x > 0.1).to(x.dtype), x.clamp(-0.1, 0.1)),
    ]


def powers(x: Tensor, y: Tensor) -> list[Tensor]:
    z = x.abs()
    return [x**2, x**3, x**4, x**-1, x**-2, z**0.1, z**2.3, 1.1**x, 2**x, z**y]


def scaled(x: Tensor, y: Tensor) -> list[Tensor]:
    return [
        *(torch.add(x, y, alpha=0.1), torch.sub(x, y, alpha=0.1), torch.add(x, y, alpha=3)),
        *(torch.add(x, 0.3, alpha=0.7), torch.sub(x, 0.3, alpha=0.7)),
    ]


@pytest.mark.each
@HALVES
@pytest.mark.parametrize("program", [sums, powers, scaled])
def test_numbers_beside_16_bits_round_as_eager(program: Function, dtype: torch.dtype) -> None:
    """Bit for bit: eager rounds summands, exponents and bounds, and factors and divisors not."""
    torch.manual_seed(0)
    x, y = (torch.randn(2048) * 3).to(dtype), torch.randn(2048).to(dtype)  # whole vectors
    call = stack.compile(program, x, y, excess_precision=False)
    for number, (found, want) in enumerate(zip(call(x, y), program(x, y), strict=True)):
        same = (found.view(torch.int16) == want.view(torch.int16)) | (found.isnan() & want.isnan())
        assert same.all(), (number, int((~same).sum()))


@ENTRIES
def test_draws_around_a_mean_have_its_type(entry: Function) -> None:
    def program(mean: Tensor, spread: Tensor) -> tuple[Tensor, ...]:
        drawn = torch.normal(mean, spread)
        return drawn, drawn * 2, torch.normal(spread, mean + 1), torch.normal(mean.double(), spread)

    mean, spread = torch.zeros(3, 2).half(), torch.ones(2) / 3
    call = entry(program, mean, spread)
    torch.manual_seed(3)
    found = call(mean, spread)
    torch.manual_seed(3)
    for a, b in zip(found, program(mean, spread), strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.every(2)
@pytest.mark.parametrize("name", ["hardsigmoid", "hardswish", "softplus", "gelu", "mish", "silu"])
def test_activations_in_f64_have_no_constants_of_f32(name: str) -> None:
    fn = getattr(F, name)
    x = torch.linspace(-2.9, 2.9, 29, dtype=torch.float64)
    given, shifted = x.clone().requires_grad_(), x.clone().requires_grad_()
    torch.compile(fn, backend="stack", fullgraph=True)(given).sum().backward()
    step = 1e-4
    about = [fn(x + k * step) for k in (-2, -1, 1, 2)]
    slope = (about[0] - 8 * about[1] + 8 * about[2] - about[3]) / (12 * step)
    fn(shifted).sum().backward()
    assert (given.grad - slope).abs().max() < 1e-10  # eager's of hardsigmoid is 5e-9 off
