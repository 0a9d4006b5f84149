"""Inputs on which eager gives nan or inf, or raises: softmax of a number, division by zero."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import pytest
import torch

import stack

Tensor = torch.Tensor
Function = Callable[..., Tensor]

EDGES = (0.0, -0.0, 1.5, -3.0, math.inf, -math.inf, math.nan)


def from_torch(fn: Function, *args: Tensor) -> Function:
    return torch.compile(fn, backend="stack", fullgraph=True, dynamic=False)


ENTRIES = pytest.mark.parametrize("entry", [stack.compile, from_torch], ids=["stack", "torch"])


@ENTRIES
@pytest.mark.parametrize("fn", [torch.softmax, torch.log_softmax], ids=lambda f: f.__name__)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["f32", "bf16"])
def test_softmax_of_a_number(entry: Function, fn: Function, dtype: torch.dtype) -> None:
    def program(x: Tensor) -> Tensor:
        return fn(x, -1)

    call = entry(program, torch.tensor(1.0, dtype=dtype))
    for value in EDGES:
        x = torch.tensor(value, dtype=dtype)
        torch.testing.assert_close(call(x), program(x), rtol=0, atol=0, equal_nan=True)


@ENTRIES
def test_hypot(entry: Function) -> None:
    pairs = torch.tensor(list(itertools.product(EDGES, EDGES)))
    x, y = pairs[:, 0].contiguous(), pairs[:, 1].contiguous()
    found = entry(torch.hypot, x, y)(x, y)
    torch.testing.assert_close(found, torch.hypot(x, y), equal_nan=True)


def _truncated(x: Tensor, y: Tensor) -> Tensor:
    return torch.div(x, y, rounding_mode="trunc")


def _floored(x: Tensor, y: Tensor) -> Tensor:
    return x // y


DIVISIONS = [_truncated, _floored, torch.fmod, torch.remainder]


@ENTRIES
@pytest.mark.parametrize("fn", DIVISIONS, ids=lambda f: f.__name__.strip("_"))
def test_integers_by_zero_raise_as_eager(entry: Function, fn: Function) -> None:
    x, y = torch.arange(-8, 8, dtype=torch.int32), torch.full((16,), -3, dtype=torch.int32)
    call = entry(fn, x, y)
    torch.testing.assert_close(call(x, y), fn(x, y))
    y[5] = 0
    for f in (fn, call):
        with pytest.raises(RuntimeError, match="ZeroDivisionError"):
            f(x, y)
    torch.testing.assert_close(call(x, x.clamp(min=1)), fn(x, x.clamp(min=1)))


@pytest.mark.parametrize("fn", DIVISIONS, ids=lambda f: f.__name__.strip("_"))
def test_overflow_wraps(fn: Function) -> None:
    """Eager's own kernels trap at some of these, and end the process."""
    least = -(2**31)
    x, y = torch.full((5,), least, dtype=torch.int32), torch.full((5,), -1, dtype=torch.int32)
    want = 0 if fn in (torch.fmod, torch.remainder) else least
    assert stack.compile(fn, x, y)(x, y).tolist() == [want] * 5


def test_what_is_not_zero_is_not_looked_at() -> None:
    def program(x: Tensor, n: int) -> Tensor:
        return x // 3 + x % (torch.arange(4) + 1) + x // x.shape[0]

    x = torch.arange(4)
    compiled = stack.compile(program, x, 7)
    assert len(compiled.run["imported"].func.results) == 1
    torch.testing.assert_close(compiled(x, 7), program(x, 7))


def test_empty_operands_divide_by_nothing() -> None:
    def program(x: Tensor, y: Tensor) -> Tensor:
        return x // y

    x, y = torch.zeros(0, dtype=torch.int32), torch.zeros((), dtype=torch.int32)
    torch.testing.assert_close(stack.compile(program, x, y)(x, y), program(x, y))


@pytest.mark.parametrize("backend", ["mlir", "interpreter"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_the_sign_of_zeros_and_nan_is_zero_without_a_sign(backend: str, dtype: torch.dtype) -> None:
    x = torch.tensor(EDGES * 5, dtype=dtype)
    for fn in (torch.sign, torch.sgn):
        found, eager = stack.compile(fn, x, backend=backend)(x), fn(x)
        torch.testing.assert_close(found, eager, rtol=0, atol=0)
        assert torch.equal(torch.signbit(found), torch.signbit(eager))
