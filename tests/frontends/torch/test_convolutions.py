"""Convolutions of torch: transposed ones as they are, and what f32 may round to."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F
from torch._subclasses import FakeTensorMode

import stack
from stack.frontends.torch_precision import conv_precision

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


def test_gradients() -> None:
    """That of the input is a transposed convolution by the weight as it is."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn((2, 4, 9, 8), generator=generator, requires_grad=True)
    w = torch.randn((6, 2, 3, 3), generator=generator, requires_grad=True)

    def fn(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return F.conv2d(x, w, stride=2, padding=1, groups=2).square().sum()

    torch.compile(fn, backend="stack")(x, w).backward()
    found = (x.grad, w.grad)
    wide = [v.detach().double().requires_grad_() for v in (x, w)]
    fn(*wide).backward()
    for got, want in zip(found, wide, strict=True):
        assert got is not None and want.grad is not None
        torch.testing.assert_close(got.double(), want.grad, rtol=1e-4, atol=1e-4)


@pytest.fixture
def cudnn() -> Iterator[object]:
    before = torch.backends.cudnn.allow_tf32
    yield torch.backends.cudnn
    torch.backends.cudnn.allow_tf32 = before


def test_precision_is_that_of_torch(cudnn: object) -> None:
    with FakeTensorMode():
        single, half = torch.empty(2, device="cuda"), torch.empty(2, device="cuda").bfloat16()
        host = torch.empty(2)
    torch.backends.cudnn.allow_tf32 = True
    assert [conv_precision(x) for x in (single, half, host)] == ["tf32", None, None]
    torch.backends.cudnn.allow_tf32 = False
    assert conv_precision(single) is None


def test_another_precision_is_another_program(cudnn: object) -> None:
    torch.backends.cudnn.allow_tf32 = True
    x, w = torch.randn(1, 2, 5), torch.randn(3, 2, 3)
    compiled = stack.compile(F.conv1d, x, w)
    compiled(x, w)
    assert len(compiled.graphs) == 1
    torch.backends.cudnn.allow_tf32 = False
    compiled(x, w)
    assert len(compiled.graphs) == 2
