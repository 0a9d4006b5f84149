"""Errors of elementary functions in ulp: how they are counted, and that bounds hold."""

from __future__ import annotations

import sys

import pytest

pytest.importorskip("torch")
pytest.importorskip("torch_mlir")

import torch

from stack.demos import accuracy

EXACT = [1.0, 1.5, -2.0, 1e-40, 3.4e38, 1e39, float("nan"), 0.0]
# in units of 2**-24, of 2**-23, and of the least normal number; what overflows is inf
GOT = [1 - 2**-23, 1.5 + 2**-22, -2.0, 0.0, float("inf"), float("inf"), 0.0, -0.0]
ULPS = [1.0, 2.0, 0.0, 1e-40 * 2**126, float("inf"), 0.0, float("inf"), 0.0]


def test_ulps() -> None:
    exact = torch.tensor(EXACT, dtype=torch.float64)
    errors = accuracy.FORMATS["f32"].ulps(torch.tensor(GOT, dtype=torch.float32), exact)
    torch.testing.assert_close(errors, torch.tensor(ULPS, dtype=torch.float64))


def test_all_numbers_of_16_bits_are_tried() -> None:
    (x,) = accuracy.FORMATS["f16"].patterns(1)
    assert x.numel() == 1 << 16
    assert x.isnan().sum() == 2 * 1023
    assert x[x.isfinite()].unique().numel() == 2 * 31 * 1024 - 1  # both zeros are one


@pytest.mark.every(2)
@pytest.mark.parametrize("name", ["exp", "erf", "erfc", "tanh"])
def test_bounds(name: str) -> None:
    error, place = accuracy.worst(name, "f32", 65537)
    assert error <= accuracy.bound(name, "f32"), place


@pytest.mark.slow
def test_all_bounds(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["accuracy"])
    assert accuracy.main() == 0, capsys.readouterr().out
