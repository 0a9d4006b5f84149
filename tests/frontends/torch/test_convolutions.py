"""Convolutions of torch: transposed ones as they are, and what f32 may round to."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch._subclasses import FakeTensorMode

import stack
from stack.frontends.torch import runs
from stack.frontends.torch.tensors.precision import conv_precision

CASES = {
    "a line": (1, {"stride": 2, "padding": 1, "output_padding": 1}),
    "an image": (2, {"stride": (2, 1), "padding": (0, 2), "dilation": (1, 2)}),
    "groups": (2, {"stride": 3, "groups": 2, "output_padding": 2}),
    "a volume": (3, {"stride": 2, "padding": 1}),
    "no stride": (2, {"padding": 1}),
}


@pytest.mark.parametrize("name", CASES)
def test_transposed(name: str) -> None:
    rank, options = CASES[name]
    call = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)[rank - 1]
    generator = torch.Generator().manual_seed(0)
    x = torch.randn((2, 4, *(5, 4, 3)[:rank]), generator=generator)
    w = torch.randn((4, 3, *(3, 2, 3)[:rank]), generator=generator)

    def fn(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return call(x, w, **options)

    compiled = stack.compile(fn, x, w)
    assert [n.attrs.get("transposed") for n in compiled.func.nodes if n.op == "conv"] == [True]
    wanted = fn(x.double(), w.double())
    torch.testing.assert_close(compiled(x, w).double(), wanted, rtol=1e-5, atol=1e-5)
    found = torch.as_tensor(compiled.func.interpret(x.numpy(), w.numpy()))
    torch.testing.assert_close(found.double(), wanted, rtol=1e-5, atol=1e-5)


GRADIENTS = {
    "groups": (F.conv2d, (6, 2, 3, 3), {"stride": 2, "padding": 1, "groups": 2}),
    "dilated": (F.conv2d, (5, 4, 3, 2), {"dilation": 2, "padding": (0, 1)}),
    "no end": (F.conv2d, (5, 4, 2, 2), {"stride": 3}),
    "transposed": (F.conv_transpose2d, (4, 3, 3, 2), {"stride": 2, "groups": 2, "padding": 1}),
    "more": (F.conv_transpose2d, (4, 3, 3, 3), {"stride": 2, "output_padding": 1}),
}


@pytest.mark.every(2)
@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients(name: str) -> None:
    """Gradients of inputs are transposed convolutions with the same weight, and vice versa."""
    call, shape, options = GRADIENTS[name]
    generator = torch.Generator().manual_seed(0)
    x = torch.randn((2, 4, 19, 18), generator=generator, requires_grad=True)
    w = torch.randn(shape, generator=generator, requires_grad=True)

    def fn(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return call(x, w, **options).square().sum()

    known = len(runs())
    torch.compile(fn, backend="stack", dynamic=False)(x, w).backward()
    assert [run.coverage["fallback"] for run in runs()[known:]] == [0, 0]
    wide = [v.detach().double().requires_grad_() for v in (x, w)]
    fn(*wide).backward()
    for got, want in zip((x.grad, w.grad), (v.grad for v in wide), strict=True):
        assert got is not None and want is not None
        torch.testing.assert_close(got.double(), want, rtol=1e-4, atol=1e-4)


def rounding(allowed: bool) -> Any:
    return torch.backends.cudnn.flags(enabled=True, allow_tf32=allowed)


def test_precision_is_that_of_torch() -> None:
    with FakeTensorMode():
        single, half = torch.empty(2, device="cuda"), torch.empty(2, device="cuda").bfloat16()
        host = torch.empty(2)
    with rounding(True):
        assert [conv_precision(x) for x in (single, half, host)] == ["tf32", None, None]
    with rounding(False):
        assert conv_precision(single) is None


def test_another_precision_is_another_program() -> None:
    x, w = torch.randn(1, 2, 5), torch.randn(3, 2, 3)
    with rounding(True):
        compiled = stack.compile(F.conv1d, x, w)
        compiled(x, w)
    assert len(compiled.graphs) == 1
    with rounding(False):
        compiled(x, w)
    assert len(compiled.graphs) == 2
