"""Graphs that are traced past AOTAutograd: the same ops, and only where nothing else is to do."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch_harness import capture, check, run

import stack
from stack.frameworks import torch_private as private
from stack.frameworks.torch_private import memory_id
from stack.frontends.torch.compile import dynamo_backend
from stack.frontends.torch.tracing.recorder import is_own, recorded

Function = Callable[..., Any]
X = torch.linspace(-1, 1, 24).reshape(2, 3, 4)
W = torch.linspace(-2, 1, 16).reshape(4, 4)


def layers(x: torch.Tensor) -> torch.Tensor:
    for _ in range(3):
        q, k, v = F.linear(x, torch.cat([W, W, W])).chunk(3, -1)
        x = F.layer_norm(x + torch.softmax(q @ k.transpose(-1, -2), -1) @ v, (4,))
    return x


def twice(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    y = x * 2
    return x @ W, y @ W, y * y, y * x, x * x


def in_place(x: torch.Tensor) -> torch.Tensor:
    y = x.sin()
    for _ in range(2):
        y = F.relu(y, inplace=True) + x
        y += 1
    return y


def entries(x: torch.Tensor) -> torch.Tensor:
    mask = torch.zeros(3, 4)
    mask[1:, :2] = 1
    mask[:1, 2:] = 2
    return x.masked_fill(mask > 1, -1.0) + mask


def views(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    y = (x + 1).transpose(1, 2)
    return y[:, 1:], x.reshape(-1) * 1.0, x[..., None].expand(2, 3, 4, 2) + 0.0


def pooled(x: torch.Tensor) -> torch.Tensor:
    return F.adaptive_avg_pool1d(x.transpose(1, 2), 1).flatten(1)


def signs(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return torch.copysign(x, torch.tensor(0.0)), x * 0.0, x * -0.0


def copies(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Copies of one element, which torch's tracer takes for constants."""
    copy = torch.ops.aten.lift_fresh_copy.default
    return x - copy(x.amin()), x - copy(x.amax()), copy(x.sum()) * copy(x.mean())


def shared_view(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    row = y[0]
    y.add_(1)
    return row + 1


def apart(x: torch.Tensor) -> torch.Tensor:
    part = (x * 2).as_strided((2, 2), (3, 1))
    part += 1
    return part


def first(x: torch.Tensor) -> torch.Tensor:
    return x[0]


def written(x: torch.Tensor) -> torch.Tensor:
    return x.add_(1) * 2


PLAIN = (layers, twice, in_place, entries, views, pooled, signs, copies, apart)
WRITE = (in_place, entries, pooled, apart)
OTHERS = (first, written)


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """For each graph, whether it was traced past AOTAutograd."""
    found: list[bool] = []

    def told(*args: Any) -> Any:
        made = recorded(*args)
        found.append(made is not None and is_own(made))
        return made

    monkeypatch.setattr(dynamo_backend, "recorded", told)
    return found


def leaves(found: Any) -> tuple[torch.Tensor, ...]:
    return found if isinstance(found, tuple) else (found,)


def imported(fn: Function) -> str:
    torch._dynamo.reset()
    text = stack.compile(fn, X.clone(), backend="interpreter").run["imported"].text
    return re.sub(r"%\w+", "%", text) if fn in WRITE else text  # names of ops that are gone


@pytest.mark.every(2)
@pytest.mark.parametrize("fn", PLAIN, ids=lambda f: f.__name__)
@torch.no_grad()
def test_ops_are_those_that_autograd_would_trace(
    fn: Function, told: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = imported(fn)
    assert told == [True]
    monkeypatch.setattr(dynamo_backend, "recorded", lambda *_: None)
    assert plain == imported(fn)


@pytest.mark.every(2)
@pytest.mark.parametrize("fn", [*PLAIN, shared_view, *OTHERS], ids=lambda f: f.__name__)
@torch.no_grad()
def test_calls_leave_behind_what_eager_does(fn: Function, told: list[bool]) -> None:
    torch._dynamo.reset()
    compiled = stack.compile(fn, X.clone(), backend="interpreter")
    for _ in range(2):
        ours, eager = X.clone(), X.clone()
        for a, b in zip(leaves(compiled(ours)), leaves(fn(eager)), strict=True):
            torch.testing.assert_close(a, b)
            assert a.stride() == b.stride()
            shares = [memory_id(t) == memory_id(x) for t, x in ((a, ours), (b, eager))]
            assert shares[0] == shares[1]
        assert torch.equal(ours, eager)
    assert told == [fn not in OTHERS]


@pytest.mark.parametrize("fn", [*PLAIN, shared_view, first], ids=lambda f: f.__name__)
def test_a_trace_goes_past_autograd(fn: Function, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(private, "export_with_aot", None)
    check(fn, X.clone())


def test_a_trace_returns_what_it_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(private, "export_with_aot", None)
    ours, eager = X.clone(), X.clone()
    torch.testing.assert_close(run(capture(written, ours), ours), written(eager))
    torch.testing.assert_close(ours, eager)


def test_constants_of_a_traced_graph_are_told_apart(told: list[bool]) -> None:
    """As `make_fx` writes them: attributes of one size, and a copy of each."""

    def clamped(x: torch.Tensor) -> torch.Tensor:
        return torch.where(x < torch.tensor([-0.5]), torch.tensor([-1.5]), x * torch.tensor([0.75]))

    graph = make_fx(clamped)(X)
    assert len(graph.graph.find_nodes(op="get_attr")) == 3
    for given in (X.clone(), X.clone().requires_grad_()):
        torch._dynamo.reset()
        compiled = stack.compile(graph, given, backend="interpreter")
        torch.testing.assert_close(compiled(given), clamped(given))
    assert told == [True, True]


def test_gradients_and_modes_are_for_autograd(told: list[bool]) -> None:
    torch._dynamo.reset()
    x = W.clone().requires_grad_()
    made = stack.compile(lambda x: (x @ x).sin(), x, backend="interpreter")(x)
    made.sum().backward()  # which has it traced a second time
    assert x.grad is not None
    asked = torch.compile(lambda x: (x @ x).sin(), backend="stack")(x)
    asked.sum().backward()
    with torch.autocast("cpu", torch.bfloat16):
        found = stack.compile(lambda x: x @ x, W, backend="interpreter")(W)
    assert found.dtype is torch.bfloat16
    assert told == [True, False]
    assert not stack.compile(lambda x: x @ x, W, backend="interpreter")(W).requires_grad
    assert told[2:] == [True]  # no gradients are asked for


# ---- tensors without memory

MODE = FakeTensorMode()
CALLS: dict[str, Function] = {
    "linear": lambda x, w: F.linear(x, w),
    "matmul": lambda x, w: x.transpose(1, 2) @ x,
    "addmm": lambda x, w: torch.addmm(w[0], w, w.t()),
    "split": lambda x, w: x.split(1, 1),
    "window": lambda x, w: x[:, 1:, ::2],
    "expand": lambda x, w: w.expand(2, 4, 4).reshape(8, 4),
    "joined": lambda x, w: x.transpose(0, 2) + x.transpose(0, 2) * w[:, :3, None],
    "compare": lambda x, w: (x > 0) & (x < w[:3]),
    "numbers": lambda x, w: (x.long() + 1) / 2,
    "norm": lambda x, w: F.layer_norm(x, (4,)),
    "permute": lambda x, w: x.permute(2, 0, 1).contiguous(),
    "numbers of other types": lambda x, w: [x.long() + k for k in (1, True, 1.0, 1)],
    "equal shapes": lambda x, w: [t + t for t in (w, w.t(), w.long(), w[:, :1].expand(4, 4), w)],
}


class Examples(torch.fx.Interpreter):
    """Notes the values of a graph's nodes, as Dynamo does."""

    def run_node(self, n: torch.fx.Node) -> Any:
        n.meta["example_value"] = value = super().run_node(n)
        return value


def looks(graph: torch.fx.GraphModule) -> list[Any]:
    """Op, layout and memory of each value of a graph."""
    nodes = [n for n in graph.graph.nodes if isinstance(n.meta.get("val"), torch.Tensor)]
    values = [n.meta["val"] for n in nodes]
    memories = [memory_id(x) for x in values]
    layouts = [(x.shape, x.stride(), x.storage_offset(), x.dtype, x.device) for x in values]
    return [
        (n.op == "placeholder" or n.target, memories.index(memory), *layout)
        for n, memory, layout in zip(nodes, memories, layouts, strict=True)
    ]


@pytest.mark.parametrize("name", CALLS)
@torch.no_grad()
def test_results_are_inferred_as_in_the_fake_mode(name: str) -> None:
    def call(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (*leaves(CALLS[name](x, w)),)

    graph = torch.fx.symbolic_trace(call)
    with MODE:
        given = [torch.empty(2, 3, 4), torch.empty(4, 4)]
        Examples(graph).run(*given)
        with private.python_dispatch():
            expected = make_fx(call)(*given)
    expected.graph.eliminate_dead_code()
    found = recorded(graph, {}.get)
    assert found is not None
    assert looks(found.graph) == looks(expected)
