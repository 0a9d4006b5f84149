"""When a graph is captured and replayed; a stand-in takes the place of CUDA's graphs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from device_backend import load

from stack.backends.calls import replay
from stack.backends.calls.replay import CapturedGraph, Replays
from stack.backends.device.executable import executable
from stack.backends.device.torch_device import TorchDevice
from stack.backends.runtime.program import BlockProgram
from stack.ir import Builder, Func, param, tensor


class FakeGraph:
    """Runs the program again and writes where it wrote before, as a replay does."""

    def __init__(self, program: BlockProgram, inputs: list[torch.Tensor]) -> None:
        self.program = program
        self.inputs = [t.detach() for t in inputs]
        self.results: list[torch.Tensor] = []

    def replay(self) -> None:
        for kept, found in zip(self.results, self.program.run(self.inputs), strict=True):
            kept.copy_(found)


class FakeReplays(Replays):
    """Captures stand-ins; counts them."""

    captures = 0

    def __init__(self, program: BlockProgram) -> None:
        super().__init__(program)
        self.problem = ""

    def _capture(self, inputs, private) -> CapturedGraph:  # type: ignore[no-untyped-def]
        self.captures += 1
        graph = FakeGraph(self.program, list(inputs))
        results = self.program.run(inputs)
        graph.results = results
        return CapturedGraph(graph, results, private)


def source() -> Func:
    b = Builder()
    x = param("x", tensor("f32", 64))
    return b.func("main", [x], [b.exp(x), b.reshape(b.neg(x), type=tensor("f32", 8, 8))])


def program() -> BlockProgram:
    return BlockProgram(source().body, TorchDevice("cpu"), load)


def test_no_graph_on_the_cpu() -> None:
    assert "host" in Replays(program()).problem


def test_who_launches_step_by_step_says_why() -> None:
    for asked, why in ((True, "a step needs the host"), (False, "graph=False asks for it")):
        assert executable(source(), program(), [], {}, asked).stepwise() == why


def test_a_graph_is_captured_when_addresses_repeat_and_results_stay_the_callers() -> None:
    runner = FakeReplays(program())
    x = torch.randn(64)
    kept: list[tuple[torch.Tensor, list[torch.Tensor]]] = []
    for _ in range(8):
        x.copy_(torch.randn(64))
        kept.append((x.clone(), runner.run([x])))
    for value, (e, n) in kept:
        torch.testing.assert_close(e, value.exp())
        torch.testing.assert_close(n, -value.view(8, 8))
    assert runner.captures == replay.TURNS + 1  # the last one's results are copied
    assert not runner.places


def test_a_small_input_that_moves_is_copied_into_place() -> None:
    runner = FakeReplays(program())
    inputs = [torch.randn(64) for _ in range(3 * replay.SETS)]
    for x in inputs:
        e, n = runner.run([x])
        torch.testing.assert_close(e, x.exp())
        torch.testing.assert_close(n, -x.view(8, 8))
    assert runner.captures <= replay.TURNS
    assert list(runner.places) == [0]
    assert len(runner.known) == 1


def test_an_input_that_moves_late_is_read_where_it_is_then() -> None:
    b = Builder()
    x, y = param("x", tensor("f32", 64)), param("y", tensor("f32", 64))
    func = b.func("main", [x, y], [b.sub(x, b.exp(y))])
    runner = FakeReplays(BlockProgram(func.body, TorchDevice("cpu"), load))
    first, second = torch.randn(64), torch.randn(64)
    for step in range(18):
        if step == 6:
            first = torch.randn(64)
        if step == 12:
            second = torch.randn(64)
        second.add_(0.5)
        (found,) = runner.run([first, second])
        torch.testing.assert_close(found, first - second.exp())
    assert list(runner.places) == [0, 1]


def test_places_are_made_for_every_mode() -> None:
    runner = FakeReplays(program())
    with torch.inference_mode():
        for _ in range(2):
            runner.run([torch.randn(64)])
    x = torch.randn(64)
    for _ in range(4):
        e, _ = runner.run([x])
        torch.testing.assert_close(e, x.exp())


def test_two_graphs_take_turns_in_a_loop() -> None:
    runner = FakeReplays(program())
    x = torch.randn(64)
    calls = []
    inner = runner.program.run
    found = None
    for _ in range(10):
        found = runner.run([x])
    del found
    runner.program.run = lambda inputs: calls.append(1) or inner(inputs)  # type: ignore
    graphs = runner.known[(x.data_ptr(),)][1]
    assert [g.is_free for g in graphs] == [True, True]
    held = runner.run([x])[0][3:5]
    assert [g.is_free for g in graphs] == [False, True]
    del held
    assert [g.is_free for g in graphs] == [True, True]


def test_numpy_views_hold_a_result_too() -> None:
    runner = FakeReplays(program())
    x = torch.randn(64)
    for _ in range(4):
        runner.run([x])
    array = runner.run([x])[0].numpy()
    before = array.copy()
    x.mul_(2)
    runner.run([x])
    np.testing.assert_array_equal(array, before)


def test_addresses_of_large_inputs_that_never_repeat_are_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(replay, "COPIED", 64)
    runner = FakeReplays(program())
    inputs = [torch.randn(64) for _ in range(3 * replay.SETS)]
    for x in inputs:
        runner.run([x])
    assert runner.captures == 0
    assert len(runner.known) == replay.SETS


def test_the_more_steps_the_larger_an_input_that_is_copied(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(replay, "COPIED", 128)
    runner = FakeReplays(program())  # two steps; its input has 256 bytes
    for x in [torch.randn(64) for _ in range(8)]:
        e, _ = runner.run([x])
        torch.testing.assert_close(e, x.exp())
    assert list(runner.places) == [0] and runner.captures == replay.TURNS
    monkeypatch.setattr(replay, "MOST_STEPS", 1)
    runner = FakeReplays(program())
    for x in [torch.randn(64) for _ in range(8)]:
        runner.run([x])
    assert not runner.places and not runner.captures


def test_large_results_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay, "KEEP", 256)
    assert Replays(program()).turns == 0
    monkeypatch.setattr(replay, "COPIED", 64)
    monkeypatch.setattr(replay, "KEEP", (replay.TURNS + 1) * 2 * 512)
    runner = FakeReplays(program())
    for x in [torch.randn(64) for _ in range(3)] * 5:
        runner.run([x])
    kept = [graphs for _, graphs in runner.known.values() if graphs]
    assert len(kept) <= runner.turns == 2


def test_steps_are_launched_while_a_profiler_records() -> None:
    runner, x = FakeReplays(program()), torch.randn(64)
    for _ in range(4):
        expected = runner.run([x])
    captures = runner.captures
    with torch.profiler.profile() as found:
        results = runner.run([x])
    names = [e.name for e in found.events() if e.name.startswith("stack::")]
    assert names == ["stack::torch.exp.exp", "stack::torch.neg.neg"]
    assert all(torch.equal(a, b) for a, b in zip(results, expected, strict=True))
    assert runner.captures == captures > 0


def by_address(runner: FakeReplays, *inputs: torch.Tensor) -> list[torch.Tensor] | None:
    return runner.call_dense([t.data_ptr() for t in inputs], inputs.__getitem__)


def test_calls_by_address_use_the_same_graphs() -> None:
    runner, x = FakeReplays(program()), torch.randn(64)
    kept = []
    for _ in range(8):
        x.normal_()
        kept.append((x.clone(), by_address(runner, x)))
    for value, found in kept:
        assert found is not None
        torch.testing.assert_close(found, [value.exp(), -value.view(8, 8)])
    assert runner.captures == replay.TURNS + 1
    runner.run([x])
    assert runner.captures == replay.TURNS + 1
    assert not runner.places


def test_an_input_is_asked_for_if_it_is_copied_only() -> None:
    b = Builder()
    x, y = param("x", tensor("f32", 64)), param("y", tensor("f32", 64))
    func = b.func("main", [x, y], [b.sub(x, b.exp(y))])
    runner = FakeReplays(BlockProgram(func.body, TorchDevice("cpu"), load))
    second, asked = torch.randn(64), list[int]()
    for step in range(12):
        given = torch.randn(64), second

        def array(number: int, given: tuple[torch.Tensor, ...] = given) -> torch.Tensor:
            asked.append(number)
            return given[number]

        asked.clear()
        found: Any = None
        found = runner.call_dense([t.data_ptr() for t in given], array)
        torch.testing.assert_close(found, [given[0] - second.exp()])
        assert step < 8 or asked == [0]


def test_memory_that_kernels_cannot_read_is_refused() -> None:
    runner = FakeReplays(program())
    for _ in range(5):
        assert by_address(runner, torch.randn(65)[1:]) is None
    assert not runner.known
    assert by_address(runner, torch.randn(68)[4:]) is not None


def test_an_input_with_a_buffer_may_move_and_be_differentiated() -> None:
    runner = FakeReplays(program())
    for _ in range(6):
        found: Any = runner.run([torch.randn(64)])
    assert runner.places
    for _ in range(4):
        x = torch.randn(64, requires_grad=True)
        found = by_address(runner, x)
        assert found is not None
        assert not any(t.requires_grad for t in found)
        torch.testing.assert_close(found[0], x.detach().exp())
    assert not any(t.requires_grad for t in runner.places.values())


def test_calls_by_address_need_no_graph() -> None:
    runner, x = Replays(program()), torch.randn(64)
    assert runner.problem
    found = runner.call_dense([x.data_ptr()], [x].__getitem__)
    torch.testing.assert_close(found, [x.exp(), -x.view(8, 8)])


def test_steps_see_no_autocast() -> None:
    x = torch.randn(8, 8)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        (found,) = TorchDevice("cpu").within(lambda arrays, _: [torch.mm(*arrays)], [x, x])
    assert found.dtype is torch.float32
