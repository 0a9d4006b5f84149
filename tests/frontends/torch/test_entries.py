"""Calls past Dynamo's wrapper: where guards hold and nothing else is asked, and only there."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import pytest

import stack

torch = pytest.importorskip("torch")

from torch.fx.experimental.proxy_tensor import make_fx  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

from stack.frontends.torch.compile import dynamo_backend  # noqa: E402
from stack.frontends.torch.compile.guarded_calls import TorchCalls  # noqa: E402
from stack.frontends.torch.program.compiled_graph import Graph  # noqa: E402

FACTOR = 2.0


@pytest.fixture
def long_ways(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows with each call that goes through Dynamo."""
    made: list[int] = []
    before = TorchCalls._called  # pyright: ignore[reportPrivateUsage]

    def counted(self: Any, args: Any, kwargs: Any, captures: bool) -> Any:
        made.append(1)
        return before(self, args, kwargs, captures)

    monkeypatch.setattr(TorchCalls, "_called", counted)
    return made


def draw(*shape: int) -> Any:
    return torch.from_numpy(np.random.default_rng().standard_normal(shape).astype(np.float32))


def wide(x: Any) -> Any:
    return x.detach().numpy().astype(np.float64)


def close(found: Any, wanted: Any) -> None:
    np.testing.assert_allclose(wide(found), wanted, rtol=1e-5, atol=1e-6)


def by_default(x: Any, y: Any = 3.0, *rest: Any, gain: float = 1.0, **words: Any) -> Any:
    total = x * y * gain
    for more in (*rest, *words.values()):
        total = total + more
    return total


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ((), {}),
        ((2.0,), {}),
        ((2.0, 1.0, 0.5), {"gain": 4.0}),
        ((), {"y": 0.5, "other": 2.0}),
        ((), {"gain": 0.5}),
    ],
)
def test_arguments_are_bound_as_python_does(args: Any, words: Any, long_ways: list[int]) -> None:
    x = draw(3, 5)
    compiled = stack.compile(by_default, x, backend="interpreter")
    compiled(x, *args, **words)
    long_ways.clear()
    for _ in range(2):
        other = draw(3, 5)
        close(compiled(other, *args, **words), wide(by_default(other, *args, **words)))
    assert not long_ways
    with pytest.raises(TypeError):
        compiled(x, x=x)


class Scaled(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gain = torch.nn.Parameter(draw(5))
        self.shift = 1.0

    def forward(self, x: Any) -> Any:
        return x * self.gain + self.shift + self.training

    def twice(self, x: Any) -> Any:
        return 2 * self.forward(x)


@pytest.mark.parametrize("name", ["", "twice"])
def test_modules_and_methods(name: str, long_ways: list[int]) -> None:
    module = Scaled()
    fn = getattr(module, name) if name else module
    x = draw(3, 5)
    compiled = stack.compile(fn, x, backend="interpreter")

    def check() -> None:
        close(compiled(x), wide(fn(x)))
        long_ways.clear()
        close(compiled(x), wide(fn(x)))
        assert not long_ways

    check()
    module.shift = 4.0
    check()
    module.eval()
    check()
    with torch.no_grad():
        module.gain.mul_(2)
        check()
    module.gain = torch.nn.Parameter(draw(5))
    check()
    module.register_forward_hook(lambda *given: given[2] * 10)
    check()


def test_globals_and_cells_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    shift = 1.0

    def fn(x: Any) -> Any:
        return x * FACTOR + shift

    x = draw(4)
    compiled = stack.compile(fn, x, backend="interpreter")
    for _ in range(2):
        close(compiled(x), wide(x) * 2 + 1)
    monkeypatch.setitem(globals(), "FACTOR", 5.0)
    close(compiled(x), wide(x) * 5 + 1)
    shift = 3.0
    close(compiled(x), wide(x) * 5 + 3)


def test_other_tensors_are_captured_and_then_known(long_ways: list[int]) -> None:
    whole = draw(8, 12)
    kinds = [whole, whole.T, whole[:, ::2], whole.double(), whole[1:]]
    compiled = stack.compile(lambda x: torch.tanh(x) + 1, whole)
    for x in kinds:
        compiled(x)
    long_ways.clear()
    for x in kinds:
        found, wanted = compiled(x), torch.tanh(x) + 1
        assert (found.dtype, found.shape, found.stride()) == (
            wanted.dtype, wanted.shape, wanted.stride(),
        )  # fmt: skip
        torch.testing.assert_close(found, wanted)
    assert not long_ways


def test_gradients_are_asked_for_by_the_call(long_ways: list[int]) -> None:
    x = draw(4, 6).requires_grad_()
    compiled = stack.compile(lambda x: torch.sin(x).sum(), x)
    with torch.no_grad():
        assert not compiled(x).requires_grad
        assert not compiled(x).requires_grad
    compiled(x)
    long_ways.clear()
    compiled(x).backward()
    assert not long_ways
    close(x.grad, np.cos(wide(x)))


class Dispatching(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


class Functions(torch.overrides.TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("context", [Functions, lambda: torch.compiler.set_stance("force_eager")])
def test_what_could_be_meant_otherwise_is_dynamos(
    context: Callable[[], AbstractContextManager[Any]], long_ways: list[int]
) -> None:
    x = draw(4)
    compiled = stack.compile(torch.tanh, x, backend="interpreter")
    compiled(x)
    long_ways.clear()
    with context():
        compiled(x)
    assert long_ways


def test_under_a_mode_of_ops_a_call_is_refused_as_before() -> None:
    x = draw(4)
    compiled = stack.compile(torch.tanh, x, backend="interpreter")
    compiled(x)
    with Dispatching(), pytest.raises(RuntimeError, match="dispatch mode"):
        compiled(x)


@pytest.mark.parametrize(
    "trace",
    [
        lambda fn, x: make_fx(fn)(x),
        lambda fn, x: torch.jit.trace(fn, x),
        lambda fn, x: torch.fx.symbolic_trace(fn)(x),
    ],
)
def test_other_tracers_are_refused_also_after_a_call(trace: Callable[[Any, Any], Any]) -> None:
    x = draw(4)
    compiled = stack.compile(torch.tanh, x, backend="interpreter")
    for _ in range(2):
        compiled(x)
    with pytest.raises(RuntimeError, match="Detected that you are using FX"):
        trace(lambda x: compiled(x) + 1, x)


@pytest.fixture
def fresh() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.usefixtures("fresh")
def test_somebody_else_traces_through_a_call() -> None:
    x, graphs = draw(4), []
    compiled = stack.compile(torch.tanh, x, backend="interpreter")
    for _ in range(2):
        compiled(x)

    def kept(gm: Any, _: Any) -> Any:
        graphs.append(gm)
        return gm.forward

    outer = torch.compile(lambda x: compiled(x) + 1, backend=kept, fullgraph=True)
    close(outer(x), np.tanh(wide(x)) + 1)
    assert len(graphs) == 1


@pytest.mark.usefixtures("fresh")
def test_what_dynamo_forgets_is_captured_again(long_ways: list[int]) -> None:
    x = draw(4)
    compiled = stack.compile(torch.tanh, x, backend="interpreter")
    compiled(x)
    torch._dynamo.reset()
    long_ways.clear()
    count = len(compiled.graphs)
    close(compiled(x), np.tanh(wide(x)))
    assert long_ways
    assert len(compiled.graphs) == count + 1


@pytest.mark.usefixtures("fresh")
def test_after_a_reset_hooks_are_guarded_and_recurrent_modules_traced() -> None:
    lstm, linear = torch.nn.LSTM(4, 3), torch.nn.Linear(4, 3)
    x = torch.randn(5, 2, 4)
    with torch.no_grad():
        recurrent, compiled = stack.compile(lstm, x), stack.compile(linear, x)
        torch._dynamo.reset()
        torch.testing.assert_close(recurrent(x)[0], lstm(x)[0])
        compiled(x)
        linear.register_forward_hook(lambda module, args, result: result * 2)
        torch.testing.assert_close(compiled(x), linear(x))


def test_preparing_runs_nothing_after_a_call() -> None:
    x = draw(4)
    compiled = stack.compile(torch.tanh, x)
    for _ in range(2):
        compiled(x)
    compiled.prepare(x)  # raises where the program runs


def test_what_is_written_and_what_is_a_view() -> None:
    def fn(x: Any, y: Any) -> Any:
        y.add_(1)
        return x.T, torch.tanh(x), y

    compiled = stack.compile(fn, draw(3, 4), draw(5))
    for _ in range(3):
        x, y = draw(3, 4), draw(5)
        kept = wide(y)
        turned, computed, written = compiled(x, y)
        assert turned.data_ptr() == x.data_ptr()
        assert written is y
        close(computed, np.tanh(wide(x)))
        close(y, kept + 1)


def test_results_in_any_order_of_axes() -> None:
    def fn(x: Any, y: Any) -> Any:
        return torch.tanh(x), x.sum(0), torch.exp(y), x.amax(1)

    compiled = stack.compile(fn, draw(7, 5), draw(2, 3, 4, 5))
    for _ in range(3):
        x, y = draw(7, 5).T, draw(2, 3, 4, 5).to(memory_format=torch.channels_last)
        found = compiled(x, y)
        for got, wanted in zip(found, fn(x.double(), y.double()), strict=True):
            assert got.stride() == wanted.stride()
            close(got, wanted.numpy())
        assert len({t.data_ptr() for t in found}) == 4


def test_arguments_that_lie_otherwise_are_not_near(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []
    monkeypatch.setattr(dynamo_backend, "Graph", lambda *a: made.append(Graph(*a)) or made[-1])
    x = draw(7, 26)[:, ::2]
    stack.compile(torch.tanh, x)(x)
    (graph,) = made
    close(graph.near([x])[0], np.tanh(wide(x)))
    others = [draw(7, 13), draw(7, 26)[:, :13], x.double(), draw(6, 26)[:, ::2]]
    assert all(graph.near([other]) is None for other in others)


def test_threads_share_entries() -> None:
    inputs = [draw(9, 5), draw(5, 9).T]
    compiled = stack.compile(lambda x: torch.tanh(x) * 2, inputs[0])
    for x in inputs:
        compiled(x)
    wrong: list[int] = []

    def work(number: int) -> None:
        wanted = 2 * np.tanh(wide(inputs[number]))
        for _ in range(200):
            if not np.allclose(compiled(inputs[number]).numpy(), wanted, rtol=1e-5):
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_names_of_graphs_go_with_the_code_that_uses_them() -> None:
    def own_names() -> set[str]:
        return {name for name in by_default.__globals__ if "_bare_" in name}

    before = own_names()
    x, wider = draw(3, 5), draw(4, 5)
    compiled = stack.compile(by_default, x)
    for given in (x, wider, x, wider):
        close(compiled(given), wide(by_default(given)))
    assert len(own_names() - before) == 2  # one of each graph, however often entries were seen
    calls: Any = compiled._calls  # pyright: ignore[reportPrivateUsage]
    calls._entries.found = ()
    gc.collect()
    assert not own_names() - before
    close(compiled(x), wide(by_default(x)))
