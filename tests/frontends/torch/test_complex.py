"""Complex numbers: pairs of real ones, inside and at the border of a program."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

import stack
from stack.frontends import torch as frontend

Inputs = tuple[Tensor, ...]


@pytest.fixture(autouse=True)
def fresh() -> None:
    torch._dynamo.reset()
    frontend.clear_runs()
    torch.manual_seed(0)


def rotated(x: Tensor, angles: Tensor) -> Tensor:
    """Llama's own rotary embedding."""
    pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * angles).flatten(3).type_as(x)


CASES: dict[str, Callable[..., Any]] = {
    "products": lambda a, b: (a * b.mT, a @ b, a * 2.5, a * (1 - 2j), 3 * a.real * b.mT),
    "sums": lambda a, b: (a + b.mT - 1, 1j - a, a.sum(), a.mean(0), torch.add(a, b.mT, alpha=2)),
    "quotients": lambda a, b: (a / b.mT, 1 / a, a / 3, a.reciprocal(), b / 2j),
    "parts": lambda a, b: (a.real, b.imag + 1, a.abs(), b.angle(), a.conj() * a, torch.sgn(b)),
    "functions": lambda a, b: (a.exp(), b.log(), a.cos(), a.sin(), b.cosh(), b.sinh(), a**3),
    "made": lambda a, b: (torch.complex(a.real, b.mT.imag), torch.polar(a.abs(), b.mT.angle())),
    "moved": lambda a, b: (torch.cat([a, b.mT]), torch.stack([a, a])[1:], a.flip(0).reshape(-1)),
    "views": lambda a, b: (a.mT, (a * 2)[1:], (b * 3).unbind(0), torch.view_as_real(b + 1)),
    "chosen": lambda a, b: (torch.where(a.real > 0, a, b.mT), a == b.mT, a != a),
    "products of rows": lambda a, b: torch.stack([a, a]) @ torch.stack([b, b]),
    "constants": lambda a, b: (torch.ones_like(a), torch.full((2,), 1 + 2j), a.to(torch.cdouble)),
}  # fmt: skip


def leaves(value: Any) -> list[Tensor]:
    return [t for t in pytree.tree_leaves(value) if isinstance(t, Tensor)]


def inputs(dtype: torch.dtype) -> Inputs:
    return torch.randn(3, 4, dtype=dtype), torch.randn(4, 3, dtype=dtype)


def gradients(fn: Callable[..., Any], given: Inputs) -> list[Tensor]:
    args = [g.clone().requires_grad_() for g in given]
    parts = [torch.view_as_real(t) if t.is_complex() else t for t in leaves(fn(*args))]
    total = sum((p.double() * (i + 1)).sin().sum() for i, p in enumerate(parts) if p.requires_grad)
    return list(torch.autograd.grad(total, args, allow_unused=True, materialize_grads=True))


@pytest.mark.each
@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
@pytest.mark.parametrize("name", CASES)
def test_values(name: str, dtype: torch.dtype) -> None:
    given = inputs(dtype)
    call = stack.compile(CASES[name], *given)
    torch.testing.assert_close(leaves(call(*given)), leaves(CASES[name](*given)))
    assert not call.run.coverage["fallback"]


@pytest.mark.every(2)
@pytest.mark.parametrize("name", sorted(CASES.keys() - {"chosen", "constants"}))
def test_gradients(name: str) -> None:
    given = inputs(torch.complex128)
    call = torch.compile(CASES[name], backend="stack", options={"backend": "interpreter"})
    torch.testing.assert_close(gradients(call, given), gradients(CASES[name], given))
    assert all(not run.coverage["fallback"] for run in frontend.runs())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rotary_embedding(dtype: torch.dtype) -> None:
    x = torch.randn(2, 6, 2, 8, dtype=dtype)
    angles = torch.polar(torch.ones(6, 1, 4), torch.randn(6, 1, 4))
    call = stack.compile(rotated, x, angles)
    assert not call.run.coverage["fallback"]
    text = call.run["imported"].text
    assert "c64" not in text and "%angles: f32[6, 1, 4, 2]" in text
    torch.testing.assert_close(call(x, angles), rotated(x, angles))


def test_complex_weights_train() -> None:
    class Filter(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(4, 4, dtype=torch.complex64))

        def forward(self, x: Tensor) -> Tensor:
            return (torch.complex(x, x * 0) @ self.weight).abs().square().sum()

    module, x = Filter(), torch.randn(5, 4)
    for backend in ("interpreter", "mlir"):
        call = torch.compile(module, backend="stack", options={"backend": backend})
        (mine,) = torch.autograd.grad(call(x), [module.weight])
        (eager,) = torch.autograd.grad(module(x), [module.weight])
        torch.testing.assert_close(mine, eager)
    assert all(not run.coverage["fallback"] for run in frontend.runs())


def test_inputs_lie_in_memory_as_they_do() -> None:
    def doubled(a: Tensor) -> tuple[Tensor, Tensor]:
        return a * 2, a.real + 1

    wide = torch.randn(6, 8, dtype=torch.complex64)
    call = stack.compile(doubled, wide)
    for given in (wide, wide.mT, wide[::2, 1:], wide.conj(), wide.conj().mT):
        torch.testing.assert_close(call(given), doubled(given))


def test_views_stay_views() -> None:
    def several(a: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        b = a * 2
        return b, b.mT, a.mT

    a = torch.randn(3, 4, dtype=torch.complex64)
    first, second, third = torch.compile(several, backend="stack")(a)
    first[0, 0] = a[0, 0] = 7
    assert second[0, 0] == third[0, 0] == 7


def test_writes_to_an_argument() -> None:
    def scaled(a: Tensor) -> Tensor:
        a.mul_(1j)
        return a.real.clone()

    a = torch.randn(3, 4, dtype=torch.complex64)
    b = a.clone()
    torch.testing.assert_close(torch.compile(scaled, backend="stack")(a), scaled(b))
    torch.testing.assert_close(a, b)


def test_what_has_no_rule_is_called() -> None:
    x = torch.randn(8)
    call = stack.compile(lambda x: torch.fft.irfft(torch.fft.rfft(x) * 2j), x)
    torch.testing.assert_close(call(x), torch.fft.irfft(torch.fft.rfft(x) * 2j))
    assert call.run.coverage["fallback"] and call.run.coverage["native"]


def test_large_and_small_numbers() -> None:
    a = torch.tensor([3e30 + 4e30j, 1e-30 + 1e-30j, 0j, complex("inf+1j")], dtype=torch.complex64)
    call = stack.compile(lambda a: (a.abs(), (1 + 1j) / a[:2]), a)
    torch.testing.assert_close(call(a), (a.abs(), (1 + 1j) / a[:2]))


EDGES = (0.0, -0.0, 1.0, -2.0, 0.5, math.inf, -math.inf, math.nan, 3e38, 1e20, -1e-30)


@pytest.mark.parametrize("kind", [torch.complex64, torch.complex128])
def test_quotients_at_the_edges_are_those_of_eager(kind: torch.dtype) -> None:
    """By zeros of both signs, infinities, nan, and numbers whose squares over- or underflow."""
    numbers = torch.tensor([complex(re, im) for re in EDGES for im in EDGES], dtype=kind)
    z, w = numbers.repeat_interleave(len(numbers)), numbers.repeat(len(numbers))

    def quotients(z: Tensor, w: Tensor) -> tuple[Tensor, ...]:
        return z / w, z.real / w, z / w.real, 2 / w, z / 2.0, z * 0.5, w.reciprocal()

    got = stack.compile(quotients, z, w)(z, w)
    for found, want in zip(got, quotients(z, w), strict=True):
        for part in ("real", "imag"):
            a, b = getattr(found, part), getattr(want, part)
            torch.testing.assert_close(a, b, rtol=3e-6, atol=1e-8, equal_nan=True)


def test_functions_at_the_edges_are_those_of_eager() -> None:
    z = torch.tensor([complex(re, im) for re in EDGES for im in EDGES], dtype=torch.complex64)

    def functions(z: Tensor, w: Tensor) -> tuple[Tensor, ...]:
        return z.abs(), z.sqrt(), z.log(), z.angle(), torch.sgn(w), torch.sgn(w.real)

    w = z[torch.isfinite(z)]
    got = stack.compile(functions, z, w)(z, w)
    for found, want in zip(got, functions(z, w), strict=True):
        parts = [torch.view_as_real(v) if v.is_complex() else v for v in (found, want)]
        torch.testing.assert_close(*parts, equal_nan=True)


def test_quotients_are_as_exact_as_those_of_eager() -> None:
    z, w = torch.randn(2, 4096, dtype=torch.complex64)
    exact = z.to(torch.complex128) / w.to(torch.complex128)
    ours = stack.compile(lambda z, w: z / w, z, w)(z, w)
    errors = [((v - exact).abs() / exact.abs()).max() for v in (ours, z / w)]
    assert errors[0] <= 2 * errors[1]
