"""Values kept by a training step with convolutions, and the gradient of a window's maximum."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import nn

import stack
from stack.frontends.torch.compile import dynamo_backend
from stack.frontends.torch.compile.dynamo_backend import GRAPHS

Tensor = torch.Tensor
Window = tuple[int, int, int, int, bool]
F = nn.functional

WINDOWS = [
    (3, 2, 1, 1, False), (2, 2, 0, 1, False), (3, 1, 1, 1, False), (3, 3, 0, 2, False),
    (2, 3, 1, 1, True), (5, 2, 2, 1, True), (3, 2, 1, 2, False), (5, 1, 2, 1, False),
]  # fmt: skip


@pytest.mark.each
@pytest.mark.parametrize("window", WINDOWS, ids=str)
@pytest.mark.parametrize("rank", [2, 3])
def test_a_window_gives_its_gradient_to_its_first_maximum(
    rank: int, window: tuple[int | bool, ...]
) -> None:
    """Maxima of many windows, each found at many elements."""
    pool: Callable[..., Tensor] = getattr(F, f"max_pool{rank}d")
    values = (torch.randn(2, 3, *(13, 11, 9)[:rank]) * 2).round()
    wanted, got = (values.clone().requires_grad_() for _ in range(2))
    torch._dynamo.reset()
    call = torch.compile(
        lambda x: pool(x, *window), backend="stack", options={"backend": "interpreter"}
    )
    expected, found = pool(wanted, *window), call(got)
    seed = torch.randn_like(expected)
    expected.backward(seed)
    found.backward(seed)
    torch.testing.assert_close(got.grad, wanted.grad)
    ops = [n.op for n in GRAPHS[-1].func.body.nodes]
    reach, step = window[3] * (window[0] - 1) + 1, window[1]
    assert ("scatter" in ops) == (rank > 2 or (-(-reach // step)) ** rank > 16)


POOLED = {
    "batch norm": lambda: nn.Sequential(nn.BatchNorm2d(8), nn.MaxPool2d(3, 2, 1)),
    "group norm": lambda: nn.Sequential(nn.GroupNorm(2, 8), nn.MaxPool2d(5, 2, 2)),
    "instance norm": lambda: nn.Sequential(
        nn.InstanceNorm2d(8, affine=True), nn.SiLU(), nn.MaxPool2d(3, 1, 1)
    ),
}


@pytest.mark.every(3)
@pytest.mark.parametrize("name", POOLED)
def test_a_maximum_is_found_again_among_values_that_backward_computes_again(name: str) -> None:
    """Both kernels round each product and each sum: with FMA in one of them no value is equal."""
    module = nn.Sequential(POOLED[name](), nn.Conv2d(8, 8, 3, padding=1, bias=False))
    for parameter in module.parameters():
        nn.init.uniform_(parameter, -0.6, 0.6)
    x = torch.randn(2, 8, 24, 23)

    def gradient(run: nn.Module, x: Tensor) -> Tensor:
        x = x.clone().requires_grad_()
        run(x).sin().sum().backward()
        assert x.grad is not None
        return x.grad.double()

    torch._dynamo.reset()
    found = gradient(torch.compile(copy.deepcopy(module), backend="stack"), x)
    eager = gradient(copy.deepcopy(module), x)
    exact = gradient(copy.deepcopy(module).double(), x.double())
    assert (found - exact).norm() <= 2 * (eager - exact).norm()


@pytest.mark.every(2)
@pytest.mark.parametrize("window", [(3, 2, 1), (5, 1, 2), (2, 2, 0)])
def test_values_are_rounded_as_eager_rounds_them(window: tuple[int, int, int]) -> None:
    x, (m, r, w, b) = torch.randn(2, 4, 19, 23), torch.randn(4, 4, 1, 1)

    def shifted(x: Tensor) -> Tensor:
        return (x - m) * r * w + b - x * m

    for run in (shifted, lambda x: F.max_pool2d(shifted(x), *window)):
        assert torch.equal(stack.compile(run, x)(x), run(x))


class Blocks(nn.Module):
    """Two convolutions with the ops between them, an attention over pixels, a head."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.second = nn.Conv2d(8, 16, 3, stride=2, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.norm(self.first(x))), 3, 2, 1)
        x = F.silu(self.second(x))
        heads = x.flatten(2).mT.unflatten(2, (2, 8)).transpose(1, 2)
        return torch.softmax(heads @ heads.mT, -1) @ heads


def step(module: nn.Module, x: Tensor) -> list[Tensor]:
    module.zero_grad(set_to_none=True)
    module(x).square().mean().backward()
    return [p.grad.clone() for p in module.parameters() if p.grad is not None]


@pytest.mark.parametrize("balance", [0.0, 150.0])
def test_kept_images_have_their_channels_last(balance: float) -> None:
    """Products have elements of two bytes; queries and keys of attention stay as they are."""
    torch.manual_seed(0)
    module = Blocks().bfloat16()
    x = torch.randn(4, 3, 16, 12, dtype=torch.bfloat16)
    wanted = step(module, x)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dynamo_backend, "_balance", lambda options, device: balance)
        torch._dynamo.reset()
        module.compile(backend="stack", options={"backend": "interpreter"})
        got = step(module, x)
    for a, b in zip(got, wanted, strict=True):
        # two bytes leave room for another choice among near maxima
        assert (a - b).float().norm() <= 0.1 * b.float().norm() + 1e-3
    shapes = [tuple(map(int, p.shape)) for p in GRAPHS[-1].func.params]
    first, last = (4, 8, 16, 12), (4, 16, 12, 8)
    assert (last in shapes, first in shapes) == (balance > 0, balance == 0)
    assert all(s[-1] != 2 for s in shapes)  # two heads
