"""Profiles: the stages are those of a dump, times are saved, a roof that is too low is named."""

from __future__ import annotations

from pathlib import Path

import pytest

import stack.measure.profile as profiles
from stack.explore.lowering import Settings, compile_target
from stack.explore.saved_run import load_run
from stack.explore.target import IRText, resolve
from stack.ir import parse
from stack.measure.kernel_time import slow
from stack.measure.kernels import UNDER_LOAD, kernel_report
from stack.measure.roofline import Ceilings
from stack.report.content import report_of
from stack.run.backend import Kernel

HIGH = Ceilings({"f32": 1e15}, {1 << 20: 1e15}, 1, "made up")
PROGRAM = """
import torch

class Scaled(torch.nn.Module):
    '''Parameters and buffers are used in another order than they are registered in.'''

    def __init__(self):
        super().__init__()
        self.last = torch.nn.Linear(8, 8)
        self.gain = torch.nn.Parameter(torch.ones(8))
        self.register_buffer("mask", torch.ones(8))

    def forward(self, x, y):
        return self.last(y * self.mask * self.gain + x)

def make():
    return Scaled(), (torch.randn(4, 8), torch.randn(4, 8))
"""
TEXT = """func @f(%x: f32[64, 64], %y: f32[64, 64]) -> (f32[64, 64]) at tensor {
  %z = dot(%x, %y) {rule="a k, k b -> a b"} : f32[64, 64] from "m.py:1"
  return %z
}
"""


@pytest.fixture
def high_roof(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profiles, "measure_ceilings", lambda quick: HIGH)


@pytest.mark.usefixtures("high_roof")
def test_a_profile_has_the_stages_of_a_dump(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    path = tmp_path / "scaled_program.py"
    path.write_text(PROGRAM)
    target = resolve(f"{path}:make", "torch")
    dumped = compile_target(target, Settings())
    profiled = profiles.profile(target, Settings(), lambda _: None).run
    for stage in ("imported", "fused", "loop"):
        assert dumped[stage].text == profiled[stage].text


@pytest.mark.usefixtures("high_roof")
def test_a_profile_is_saved_with_its_run(tmp_path: Path) -> None:
    found = profiles.profile(
        IRText("f.stack", parse(TEXT)), Settings(backend="mlir"), lambda _: None
    )
    assert found.timings is not None
    saved = load_run(found.run.save(tmp_path / "r"))
    assert "measured" in dict(slow(saved, found.run.kernels[0].name))
    report = report_of(saved)
    assert report.kernels[0].timing == found.timings[0]
    assert report.ceilings == HIGH


def test_a_share_above_the_roof_says_that_the_roof_is_low() -> None:
    kernels = [Kernel("k", "generated", flops=1e6, bytes=8.0)]
    low = Ceilings({"f32": 1e9}, {1 << 20: 1e15}, 1, "made up")
    assert UNDER_LOAD in kernel_report(kernels, [0.5e-3], low, "f32")
    assert UNDER_LOAD not in kernel_report(kernels, [2e-3], low, "f32")
    assert UNDER_LOAD not in kernel_report(kernels, None, low, "f32")


@pytest.mark.usefixtures("high_roof")
def test_ceilings_below_a_kernel_are_measured_again(monkeypatch: pytest.MonkeyPatch) -> None:
    measured = iter([Ceilings({"f32": 1.0}, {1 << 20: 1.0}, 1, "busy"), HIGH])
    monkeypatch.setattr(profiles, "measure_ceilings", lambda quick: next(measured))
    target = IRText("f.stack", parse(TEXT))
    found = profiles.profile(target, Settings(backend="mlir"), lambda _: None)
    assert found.ceilings.of("f32") == HIGH.of("f32")
    assert UNDER_LOAD not in str(found)
