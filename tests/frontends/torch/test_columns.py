"""`unfold` and `fold` of images: windows become views and pads, without indices."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import stack

SHAPES = [  # image, kernel, stride, padding, dilation
    ((7, 9), (2, 3), (1, 2), (0, 1), (1, 2)),
    ((8, 8), (2, 2), (2, 2), (0, 0), (1, 1)),  # patches
    ((7, 5), (2, 1), (3, 2), (1, 0), (1, 1)),  # elements between the windows
    ((5, 4), (3, 3), (1, 1), (1, 1), (1, 1)),
    ((1, 1), (1, 1), (1, 1), (0, 0), (1, 1)),
    ((11, 6), (3, 2), (2, 1), (2, 0), (2, 3)),
]
Sizes = tuple[int, int]


@pytest.mark.parametrize(("image", "kernel", "stride", "padding", "dilation"), SHAPES)
@pytest.mark.parametrize("lead", [(), (2,)])
def test_windows_and_their_sum(
    image: Sizes, kernel: Sizes, stride: Sizes, padding: Sizes, dilation: Sizes, lead: Sizes
) -> None:
    how = kernel, dilation, padding, stride
    x = torch.randn(*lead, 3, *image, dtype=torch.float64, requires_grad=True)
    columns = F.unfold(x, *how)
    given = torch.randn_like(columns).requires_grad_()

    def fold(columns: torch.Tensor) -> torch.Tensor:
        return F.fold(columns, image, *how)

    for fn, arg in ((lambda x: F.unfold(x, *how), x), (fold, given)):
        traced = stack.trace(fn, arg.detach())
        assert not {n.op for n in traced.nodes} & {"opaque", "gather", "scatter"}
        torch._dynamo.reset()
        made = torch.compile(fn, backend="stack", options={"backend": "interpreter"})(arg)
        wanted = fn(arg)
        torch.testing.assert_close(made, wanted)
        weight = torch.randn_like(wanted)
        pairs = zip(*(torch.autograd.grad(y, arg, weight) for y in (made, wanted)), strict=True)
        for got, exact in pairs:
            torch.testing.assert_close(got, exact)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_sums_of_short_floats_are_rounded_once(dtype: torch.dtype) -> None:
    columns = torch.randn(2, 4 * 9, 36).to(dtype)
    call = stack.compile(lambda c: F.fold(c, (6, 6), 3, padding=1), columns)
    exact = F.fold(columns.double(), (6, 6), 3, padding=1)
    assert torch.equal(call(columns), exact.to(dtype))


def test_images_of_any_size() -> None:
    """Sizes that are not known leave the work to torch."""
    fn = torch.compile(lambda x: F.unfold(x, 2) * 2, backend="stack", dynamic=True)
    for size in (5, 7, 8):
        x = torch.randn(2, 3, size, size + 1)
        torch.testing.assert_close(fn(x), F.unfold(x, 2) * 2)
