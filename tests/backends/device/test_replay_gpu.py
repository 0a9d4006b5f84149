"""CUDA graphs themselves: pools whose graphs are gone, captures that fail."""

from __future__ import annotations

import pytest
import torch
from device_backend import load

from stack.backends.calls import replay
from stack.backends.calls.replay import Replays
from stack.backends.device.torch_device import TorchDevice
from stack.backends.runtime.program import BlockProgram
from stack.ir import Builder, param, tensor

pytestmark = pytest.mark.gpu


class Doubling(BlockProgram):
    """A program of one step that torch runs, so that no kernel has to be compiled."""

    def run(self, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
        return [x * 2 for x in inputs]


class Waiting(Doubling):
    """Does what a capture refuses."""

    def run(self, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
        if torch.cuda.is_current_stream_capturing():
            torch.cuda.current_stream().synchronize()
        return super().run(inputs)


def replays(kind: type[BlockProgram]) -> Replays:
    b = Builder()
    x, y = param("x", tensor("f32", 64)), param("y", tensor("f32", 64))
    func = b.func("main", [x, y], [b.add(x, x), b.add(y, y)])
    runner = Replays(kind(func.body, TorchDevice("cuda"), load))
    runner.problem = ""
    return runner


def test_graphs_that_are_all_gone_are_captured_anew() -> None:
    runner = replays(Doubling)
    x, y = torch.randn(2, 64, device="cuda")
    for turn in range(20):
        if turn % 5 == 0:  # a small input that moves for the first time ends all graphs
            x, y = (torch.randn(64, device="cuda"), y) if turn % 10 else (x, y.clone())
        found = runner.run([x, y])
        torch.testing.assert_close(found, [x * 2, y * 2])
    assert not runner.problem
    assert any(graphs for _, graphs in runner.known.values())


def test_torch_still_draws_after_a_capture_that_fails() -> None:
    runner = replays(Waiting)
    x, y = torch.randn(2, 64, device="cuda")
    with pytest.warns(UserWarning, match="no CUDA graph"):
        for _ in range(replay.WARM + 1):
            found = runner.run([x, y])
    torch.testing.assert_close(found, [x * 2, y * 2])
    assert runner.problem
    assert torch.randn(8, device="cuda").isfinite().all()
