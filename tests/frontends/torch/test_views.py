"""Results that are views: after the first call only offset and strides are set, without a graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import stack

torch = pytest.importorskip("torch")

from stack.frontends.torch.program import compiled_graph  # noqa: E402


@pytest.fixture
def long_ways(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The graphs that were called the long way."""
    found: list[Any] = []
    called = compiled_graph.Graph._called  # pyright: ignore[reportPrivateUsage]

    def counted(self: Any, args: Any) -> Any:
        found.append(self)
        return called(self, args)

    monkeypatch.setattr(compiled_graph.Graph, "_called", counted)
    return found


def draw(*shape: int, seed: int = 0) -> Any:
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(shape, dtype=np.float32))


def _of_result(x: Any) -> Any:
    y = torch.tanh(x)
    return y, y[1:], y.t()


def _of_views(x: Any) -> Any:
    y = torch.exp(x)
    return x[1:].t()[2:], y.t()[1:].unsqueeze(0), y


Function = Callable[[Any], Any]

PROGRAMS: dict[str, Function] = {
    "tail": lambda x: x[2:],
    "views alone": lambda x: (x.t(), x[:, ::2], x[1]),
    "nothing left": lambda x: x[4:],
    "expanded": lambda x: (x[:, :1].expand(-1, 5), x + 1),
    "one of many axes": lambda x: (x.view(2, 2, 6).permute(2, 0, 1)[1:], x.sum()),
    "overlapping": lambda x: (x.unfold(1, 3, 1), x * 2),
    "diagonal": lambda x: (x.diagonal(), x.sum(0)),
    "itself": lambda x: (x, x + 1, x[0]),
    "chunks": lambda x: (x + 1).chunk(2, -1),
    "result and views": _of_result,
    "view of a result": lambda x: (x + 1).view(2, 12),
    "transposed result": lambda x: ((x * 2).t(), (x * 3).view(-1)),
    "views of views": _of_views,
    "one order and another": lambda x: (x.sum(1), x.t(), torch.exp(x), x.sum(0)),
}
LAYOUTS: dict[str, Callable[[int], Any]] = {
    "dense": lambda seed: draw(4, 6, seed=seed),
    "transposed": lambda seed: draw(6, 4, seed=seed).t(),
    "step": lambda seed: draw(4, 12, seed=seed)[:, ::2],
    "offset": lambda seed: draw(5, 6, seed=seed)[1:],
}


def results(found: Any) -> list[Any]:
    return [found] if isinstance(found, torch.Tensor) else [*found]


def looks(found: Any, x: Any) -> list[Any]:
    """The memory of results: sizes, strides, offsets, and which results share memory."""
    tensors = [x, *results(found)]
    memory = [t.untyped_storage().data_ptr() for t in tensors]
    return [
        (
            t.shape, t.dtype, t.requires_grad, t is x, memory.index(place),
            t.stride() if t.numel() else (), t._version if memory.index(place) == 0 else 0,
            t.storage_offset() if memory.index(place) == 0 else 0,
        )
        for t, place in zip(tensors, memory, strict=True)
    ]  # fmt: skip


def entry(name: str, fn: Any, x: Any) -> Any:
    torch._dynamo.reset()
    return stack.compile(fn, x) if name == "stack" else torch.compile(fn, backend="stack")


def equal(found: Any, wanted: Any) -> None:
    for a, b in zip(results(found), results(wanted), strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.each
@pytest.mark.parametrize("name", ["stack", "dynamo"])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("program", PROGRAMS)
def test_values_and_memory(program: str, layout: str, name: str, long_ways: list[Any]) -> None:
    fn, make = PROGRAMS[program], LAYOUTS[layout]
    if "view" in program and layout != "dense" and "one of many" in program:
        pytest.skip("no such view")
    try:
        fn(make(0))
    except RuntimeError:
        pytest.skip("eager has no such view")
    compiled = entry(name, fn, make(0))
    compiled(make(0))
    long_ways.clear()
    for seed in (1, 2):
        x, twin = make(seed), make(seed)
        found, wanted = compiled(x), fn(twin)
        equal(found, wanted)
        assert looks(found, x) == looks(wanted, twin)
        for t in (x, twin):  # what is seen of the argument
            t.mul_(3)
        equal(found, wanted)
        for a, b in zip(results(found), results(wanted), strict=True):
            if a.numel() and 0 not in a.stride() and program != "overlapping":
                for t in (a, b):  # what is seen of other results
                    t.add_(1)
        equal(found, wanted)
        equal(x, twin)
        assert looks(found, x) == looks(wanted, twin)
    assert long_ways == []


def test_an_argument_may_begin_anywhere_in_its_memory(long_ways: list[Any]) -> None:
    compiled = stack.compile(lambda x: (x[1:].t(), x + 1), draw(3, 4))
    compiled(draw(3, 4))
    long_ways.clear()
    x = draw(40)[9:21].view(3, 4)
    view, _ = compiled(x)
    assert long_ways == []
    assert view.data_ptr() == x[1:].data_ptr()
    equal(view, x[1:].t())


def test_views_of_what_has_gradients_are_autograds(long_ways: list[Any]) -> None:
    compiled = stack.compile(lambda x: x.detach()[1:], draw(3, 4).requires_grad_())
    for _ in range(3):
        assert not compiled(draw(3, 4).requires_grad_()).requires_grad
    assert len(long_ways) == 4
    compiled = stack.compile(lambda x: (x[1:], x * 2), draw(3, 4))
    for _ in range(3):
        x = draw(3, 4)
        assert not any(t.requires_grad for t in compiled(x))
        assert all(t.requires_grad for t in compiled(x.requires_grad_()))


@pytest.mark.parametrize("program", ["tail", "result and views", "transposed result"])
def test_gradients_of_what_is_written_to_a_view_later(program: str) -> None:
    fn = PROGRAMS[program]

    def gradient(call: Function) -> Any:
        x, scale = draw(4, 6), torch.full((), 2.0, requires_grad=True)
        found = results(call(x))
        found[-1].mul_(scale)
        (sum(t.sum() for t in found) + x.sum()).backward()
        return scale.grad

    compiled = stack.compile(fn, draw(4, 6))
    compiled(draw(4, 6))
    equal(gradient(compiled), gradient(fn))


def test_nobody_sees_a_view_made_who_did_not_see_it_traced() -> None:
    seen: list[str] = []

    class Listening(torch.overrides.TorchFunctionMode):
        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            if not torch.compiler.is_compiling():
                seen.append(getattr(func, "__name__", ""))
            return func(*args, **(kwargs or {}))

    x = draw(3, 4)
    torch._dynamo.reset()
    compiled = torch.compile(lambda x: (x[1:], x + 1), backend="stack")
    for _ in range(3):
        with Listening():
            equal(compiled(x), (x[1:], x + 1))
    assert "as_strided" not in seen


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: (torch.complex(x, x).conj(), x[1:]),
        lambda x: (x.view(torch.int32), x + 1),
        lambda x: (x.view(torch.int32).view(torch.float32)[1:], x + 1),
    ],
)
def test_what_strides_do_not_say(fn: Function) -> None:
    compiled = stack.compile(fn, draw(3, 4))
    for seed in range(3):
        x, twin = draw(3, 4, seed=seed), draw(3, 4, seed=seed)
        found, wanted = results(compiled(x)), results(fn(twin))
        equal(found, wanted)
        assert [t.is_conj() for t in found] == [t.is_conj() for t in wanted]


def test_training_keeps_views() -> None:
    def fn(x: Any, w: Any) -> Any:
        y = torch.tanh(x @ w)
        return y[1:], y.t()

    x, w = draw(5, 4).requires_grad_(), draw(4, 3, seed=1).requires_grad_()
    compiled = stack.compile(fn, x, w)
    for seed in range(3):
        other = draw(5, 4, seed=seed).requires_grad_()
        found = torch.autograd.grad(sum(t.square().sum() for t in compiled(other, w)), (other, w))
        wide = [t.detach().double().requires_grad_() for t in (other, w)]
        wanted = torch.autograd.grad(sum(t.square().sum() for t in fn(*wide)), wide)
        for a, b in zip(found, wanted, strict=True):
            torch.testing.assert_close(a.double(), b, rtol=1e-4, atol=1e-5)
