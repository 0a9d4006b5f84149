"""Arguments that the program reads from elsewhere too: as a global, a closure's, a weight."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import nn
from torch.func import functional_call
from torch.utils import _pytree as pytree

import stack

ENTRIES = ("torch.compile", "stack.compile")

g = torch.ones(3)
new = torch.full((3,), 5.0)
table = {"w": torch.ones(3), "inner": {"b": torch.full((3,), 2.0)}}
rows = [torch.ones(3), torch.zeros(3)]
linear, other = nn.Linear(3, 2), nn.Linear(3, 2)
norm = nn.BatchNorm1d(3)
x = torch.ones(1, 3)


def global_first(w: torch.Tensor) -> torch.Tensor:
    return 10 * g + w


def argument_first(w: torch.Tensor) -> torch.Tensor:
    return w * 2 + 10 * g


def two(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return a + 10 * b + 100 * g


def several(*ws: torch.Tensor) -> torch.Tensor:
    return ws[0] * 10 + g + 100 * ws[1]


def nested(p: dict[str, Any]) -> torch.Tensor:
    return p["w"] + 10 * p["inner"]["b"] + 100 * table["w"] + 1000 * table["inner"]["b"]


def listed(xs: Sequence[torch.Tensor]) -> torch.Tensor:
    return xs[0] + 10 * rows[0] + 100 * xs[1]


def statistics(mean: torch.Tensor) -> Any:
    return norm.running_mean + 10 * mean


def weight(w: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return linear(x) + 10 * w.sum()


def functional(p: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    return functional_call(linear, p, (x,))


def model(m: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return m(x) + 10 * linear(x)


def updated(p: dict[str, Any], by: dict[str, Any]) -> dict[str, torch.Tensor]:
    return {name: p[name] - 0.5 * by[name] + 10 * table["w"] for name in p}


def decided(w: torch.Tensor) -> torch.Tensor:
    return w * 2 if w is g else w * 3


def written(w: torch.Tensor) -> torch.Tensor:
    w.add_(1)
    return w + 10 * g


class Holder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.ones(3))
        self.register_buffer("b", torch.full((3,), 3.0))

    def forward(self, p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
        return self.w * 10 + p + 100 * self.b + 1000 * q


def closure() -> tuple[Callable[..., Any], torch.Tensor]:
    held = torch.ones(3)

    def fn(w: torch.Tensor) -> torch.Tensor:
        return w + 10 * held

    return fn, held


holder = Holder()
enclosed, held = closure()
own = dict(linear.named_parameters())
views = {name: p.detach() for name, p in own.items()}
given = {"weight": torch.zeros(2, 3), "bias": torch.ones(2)}
fresh = {"w": new, "inner": {"b": new * 3}}

# what a program is compiled for, and arguments of a later call
CASES: dict[str, tuple[Any, tuple[Any, ...], tuple[Any, ...]]] = {
    "global first": (global_first, (g,), (new,)),
    "argument first": (argument_first, (g,), (new,)),
    "later it is the global": (argument_first, (new,), (g,)),
    "view of the global": (argument_first, (g[:],), (g,)),
    "closure": (enclosed, (held,), (new,)),
    "twice": (two, (g, g), (new, new * 2)),
    "twice, then once": (two, (g, g), (g, new)),
    "one tensor, then two": (two, (new, new), (new, new * 2)),
    "rest of the arguments": (several, (g, g), (new, new * 2)),
    "dict": (nested, (table,), (fresh,)),
    "part of a dict": (nested, ({**table},), (fresh,)),
    "list": (listed, (rows,), ([new, new * 2],)),
    "statistics": (statistics, (norm.running_mean,), (new,)),
    "weight": (weight, (linear.weight, x), (torch.zeros(2, 3), x)),
    "functional call": (functional, (own, x), (given, x)),
    "functional call of views": (functional, (views, x), (given, x)),
    "module": (model, (linear, x), (other, x)),
    "optimizer": (updated, ({"w": table["w"]}, {"w": table["w"]}), ({"w": new}, {"w": new * 2})),
    "identity is asked": (decided, (g,), (new,)),
    "own weight": (holder, (holder.w, holder.b), (new, new * 2)),
    "own buffer twice": (holder, (holder.b, holder.b), (holder.w, new)),
}  # fmt: skip


def compiled(entry: str, fn: Any, args: Sequence[Any]) -> Any:
    torch._dynamo.reset()
    if entry == "stack.compile":
        return stack.compile(fn, *args, backend="interpreter")
    return torch.compile(fn, backend="stack", options={"backend": "interpreter"})


def tensors(result: Any) -> list[torch.Tensor]:
    return [t.detach().clone() for t in pytree.tree_leaves(result)]


@pytest.mark.each
@pytest.mark.parametrize("entry", ENTRIES)
@pytest.mark.parametrize("name", CASES)
def test_an_argument_is_an_argument(name: str, entry: str) -> None:
    fn, first, second = CASES[name]
    call = compiled(entry, fn, first)
    for args in (first, second, first):
        for ours, theirs in zip(tensors(call(*args)), tensors(fn(*args)), strict=True):
            torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("entry", ENTRIES)
def test_a_write_to_an_argument_that_is_a_global(entry: str) -> None:
    call = compiled(entry, written, (g,))
    try:
        assert call(g).tolist() == [22] * 3
        assert call(new.clone()).tolist() == [26] * 3
        assert g.tolist() == [2] * 3
        assert call(g).tolist() == [33] * 3
    finally:
        g.fill_(1)


@pytest.mark.parametrize("entry", ENTRIES)
def test_gradients_of_the_arguments_of_functional_call(entry: str) -> None:
    call = compiled(entry, functional, (own, x))
    for p in (own, {k: v.clone().requires_grad_() for k, v in given.items()}, own):
        right = torch.autograd.grad(functional(p, x).square().sum(), [*p.values()])
        found = torch.autograd.grad(call(p, x).square().sum(), [*p.values()])
        for ours, theirs in zip(found, right, strict=True):
            torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("fn", [argument_first, global_first])
def test_a_trace_has_a_parameter_for_an_argument_that_is_a_global(fn: Callable[..., Any]) -> None:
    assert len(stack.trace(fn, g).params) == 2


def test_a_trace_of_a_module_has_its_weight_and_an_argument_that_is_the_weight() -> None:
    module = nn.Linear(3, 3)
    assert len(stack.trace(module, module.weight).params) == 3


def test_what_the_guard_says() -> None:
    call = compiled("stack.compile", argument_first, (g,))
    call(new)
    assert "is" in call.run.notes["captured again"]
