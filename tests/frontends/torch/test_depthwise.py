"""Training with convolutions in groups whose gradients read images with holes, against f64."""

from __future__ import annotations

import copy
from typing import Any

import pytest

import stack

torch: Any = pytest.importorskip("torch")
pytest.importorskip("torch_mlir")
nn = torch.nn

CASES: dict[str, tuple[Any, tuple[int, ...]]] = {
    "stride 2": (nn.Conv2d(16, 16, 3, 2, 1, groups=16), (2, 16, 9, 10)),
    "of a line": (nn.Conv1d(6, 6, 4, 2, 1, groups=6), (2, 6, 17)),
    "of a volume": (nn.Conv3d(4, 4, 3, 2, 1, groups=4), (1, 4, 5, 6, 5)),
    "with gaps": (nn.Conv2d(6, 6, 3, 2, 1, dilation=2, groups=6), (2, 6, 11, 10)),
    "two results for each channel": (nn.Conv2d(6, 12, 3, 2, 1, groups=6), (2, 6, 9, 10)),
    "channels in pairs": (nn.Conv2d(8, 8, 3, 2, 1, groups=4), (2, 8, 9, 10)),
    "two strides": (nn.Conv2d(8, 8, (3, 5), (2, 1), (1, 2), groups=8), (1, 8, 9, 10)),
    "transposed": (nn.ConvTranspose2d(16, 16, 3, 2, 1, 1, groups=16), (2, 16, 5, 6)),
    "transposed, of a line": (nn.ConvTranspose1d(6, 6, 5, 3, 1, 2, groups=6), (2, 6, 9)),
    "transposed, with gaps": (
        nn.ConvTranspose2d(6, 6, 3, 2, 1, 1, groups=6, dilation=2),
        (2, 6, 5, 6),
    ),
    "of one channel": (nn.ConvTranspose2d(1, 1, 4, 2, 1), (2, 1, 5, 6)),
}


def gradients(call: Any, module: Any, x: Any) -> list[Any]:
    """A result, and the gradients of the image and of the parameters."""
    x = x.detach().clone().requires_grad_()
    module.zero_grad()
    y = call(x)
    # Not symmetric around 0: a bias's gradient would be a sum of 0, all of it rounding.
    y.backward(torch.linspace(-1, 2, y.numel()).reshape(y.shape).to(y.dtype))
    return [y.detach(), x.grad, *(p.grad for p in module.parameters())]


def check(module: Any, x: Any, times: float) -> None:
    """No more than so many times the error of torch itself, or a few roundings."""
    torch.manual_seed(0)
    torch.compiler.reset()
    wide = copy.deepcopy(module).double()
    exact = gradients(wide, wide, x.double())
    eager = gradients(module, module, x)
    found = gradients(torch.compile(module, backend="stack"), module, x)
    for want, own, got in zip(exact, eager, found, strict=True):
        size = want.abs().max()
        slack = 8 * torch.finfo(x.dtype).eps * size
        assert (got.double() - want).abs().max() <= max(
            times * (own.double() - want).abs().max(), slack
        )


@pytest.mark.every(2)
@pytest.mark.parametrize("name", CASES)
def test_gradients(name: str) -> None:
    module, shape = CASES[name]
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    check(copy.deepcopy(module), x, 2)


@pytest.mark.parametrize("name", ["stride 2", "transposed"])
def test_short_numbers_with_channels_last(name: str) -> None:
    module, shape = CASES[name]
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(torch.bfloat16)
    x = x.contiguous(memory_format=torch.channels_last)
    check(copy.deepcopy(module).to(torch.bfloat16), x, 3)


def test_what_is_no_kernel_of_ours_is_counted() -> None:
    """Single channels with holes are a library's; in groups of many, phases are a product."""
    x = torch.randn(2, 16, 5, 6)
    with torch.no_grad():
        single = stack.compile(nn.ConvTranspose2d(16, 16, 3, 2, groups=16), x)
        many = stack.compile(nn.Sequential(nn.ConvTranspose2d(16, 32, 4, 2, 1), nn.ReLU()), x)
    assert single.run.coverage["library"] == 1
    assert many.run.coverage["library"] == 0


@pytest.mark.parametrize("rank", [3, 4, 5])
def test_the_layout_of_kernels_for_groups(rank: int) -> None:
    """Images and volumes are copied with their channels last; rows have no such layout."""
    from stack.frontends.torch.replay import conv

    x = torch.randn(2, 3, *range(4, 2 + rank))
    turned = conv._channels_last(x)
    torch.testing.assert_close(turned, x)
    assert (turned.movedim(1, -1) if rank > 3 else turned).is_contiguous()


@pytest.mark.gpu
def test_gradients_of_rows_on_a_gpu() -> None:
    x = torch.randn(2, 16, 40, device="cuda", dtype=torch.bfloat16)
    check(nn.Conv1d(16, 16, 9, padding=4, groups=16).to(x), x, 3)
