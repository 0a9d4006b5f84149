"""Resizing of images with antialiasing: values and gradients, no fallback."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

import stack

SIZES = [
    ((13, 17), (5, 9)),
    ((4, 6), (9, 11)),
    ((7, 8), (7, 8)),
    ((1, 5), (3, 1)),
    ((9, 2), (1, 2)),
]
EXACT = {"rtol": 0, "atol": 0}


def resized(x: torch.Tensor, mode: str, corners: bool, **to: Any) -> torch.Tensor:
    return F.interpolate(x, mode=mode, align_corners=corners, antialias=True, **to)


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
@pytest.mark.parametrize("corners", [False, True])
@pytest.mark.each
@pytest.mark.parametrize(("size", "to"), SIZES)
def test_values_and_gradients(mode: str, corners: bool, size: Any, to: Any) -> None:
    x = torch.randn(2, 3, *size, dtype=torch.float64, requires_grad=True)
    ours = stack.compile(lambda x: resized(x, mode, corners, size=to), x)
    assert not ours.run.coverage["fallback_ops"]
    got, want = ours(x), resized(x, mode, corners, size=to)
    torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-12)
    weight = torch.randn_like(want)
    (found,) = torch.autograd.grad(got, x, weight)
    (right,) = torch.autograd.grad(want, x, weight)
    torch.testing.assert_close(found, right, rtol=1e-12, atol=1e-12)


def test_scale_factors() -> None:
    x = torch.randn(1, 2, 30, 41)
    way: dict[str, Any] = {"scale_factor": (0.37, 1.9), "recompute_scale_factor": False}
    got = stack.compile(lambda x: resized(x, "bicubic", False, **way), x)(x)
    true = resized(x.double(), "bicubic", False, **way)
    theirs = (resized(x, "bicubic", False, **way).double() - true).abs().max()
    assert (got.double() - true).abs().max() <= 2 * theirs + 4 * torch.finfo(torch.float32).eps


def test_bytes_are_torchs() -> None:
    x = torch.randint(0, 256, (1, 3, 8, 8), dtype=torch.uint8)
    got = stack.compile(lambda x: resized(x, "bilinear", False, size=(5, 3)), x)(x)
    torch.testing.assert_close(got, resized(x, "bilinear", False, size=(5, 3)), **EXACT)


def test_products_of_tables_that_follow_each_other() -> None:
    """Vision transformers resize a table of positions: two matmuls, whose gradient is two more."""

    def resampled(p: torch.Tensor) -> torch.Tensor:
        grid = p[:, 1:].reshape(1, 6, 6, 64).permute(0, 3, 1, 2)
        made = resized(grid, "bicubic", False, size=(4, 4))
        return made.permute(0, 2, 3, 1).reshape(1, -1, 64)

    p = torch.randn(1, 37, 64, dtype=torch.float64, requires_grad=True)
    wide, narrow = resampled(p), p.detach().float().requires_grad_()
    ours = stack.compile(resampled, narrow)(narrow)
    weight = torch.randn_like(wide)
    (want,) = torch.autograd.grad(wide, p, weight)
    (got,) = torch.autograd.grad(ours, narrow, weight.float())
    torch.testing.assert_close(ours.double(), wide, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(got.double(), want, rtol=1e-5, atol=1e-5)
