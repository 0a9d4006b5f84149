"""Inputs that eager refuses are refused; similar ones that eager accepts are not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import stack
from stack.frontends.torch.graphs import eager_runs

Tensor = torch.Tensor
Program = Callable[..., Any]
INTS = torch.tensor([[1, 2], [3, 4]])
FLOATS = torch.ones(2, 2)


def from_torch(fn: Program, *args: Tensor) -> Program:
    torch._dynamo.reset()
    return torch.compile(fn, backend="stack", fullgraph=True)


ENTRIES = pytest.mark.parametrize("entry", [stack.compile, from_torch], ids=["stack", "torch"])

REFUSED: dict[str, tuple[Program, Tensor]] = {
    "power": (lambda x: x**-1, INTS),
    "max": (lambda x: x.max(), torch.ones(0)),
    "addmm": (lambda x: torch.addmm(x.double(), x, x), FLOATS),
    "matmul": (lambda x: x @ x.double(), FLOATS),
    "linear": (lambda x: F.linear(x, x, torch.ones(2)), INTS),
    "std": (lambda x: x.std(), INTS),
    "gelu": (lambda x: F.gelu(x), INTS),
    "silu": (lambda x: F.silu(x) + 1, INTS),
    "softmax": (lambda x: x.softmax(-1), INTS),
    "resize": (lambda x: F.interpolate(x[None, None], scale_factor=2, mode="bilinear"), INTS.int()),
    "masked_fill": (lambda x: x.masked_fill(x > 1, -2.7), INTS.to(torch.uint8)),
    "bucketize": (lambda x: torch.bucketize(x, torch.ones(2, 2)), FLOATS),
    "round": (lambda x: torch.round(x, decimals=-1), INTS),
    "index_add": (lambda x: x.index_add(0, torch.tensor([0]), x[:1].double()), FLOATS),
}


@pytest.mark.each
@ENTRIES
@pytest.mark.parametrize("name", REFUSED)
def test_what_eager_refuses_raises_its_text(entry: Program, name: str) -> None:
    program, x = REFUSED[name]
    with pytest.raises((RuntimeError, NotImplementedError, IndexError)) as eager:
        program(x)
    text = str(eager.value).splitlines()[0]
    with pytest.raises(Exception) as raised:
        entry(program, x)(x)
    assert text in str(raised.value)
    if entry is stack.compile:
        assert type(raised.value) is type(eager.value)
    assert "test_refusals.py:" in str(raised.value)


TAKEN: list[Program] = [
    lambda x: F.avg_pool2d(x[None].long(), 2),
    lambda x: x.long() ** 2 + x.long().sum(),
    lambda x: x.long().masked_fill(x > 1, 2.7),
    lambda x: torch.addmm(x.double(), x.double(), x.double()),
    lambda x: F.one_hot(x.long(), 3).repeat_interleave(torch.tensor([1, 2]), 0, output_size=3),
]


@pytest.mark.parametrize("number", range(len(TAKEN)))
def test_what_eager_takes_is_taken(number: int) -> None:
    program = TAKEN[number]
    torch.testing.assert_close(stack.compile(program, FLOATS)(FLOATS), program(FLOATS))


def test_calls_that_look_refused_run_once_in_eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sizes of repeats that add up wrongly on small tensors are right on the program's own."""
    runs: list[Any] = []

    def noted(*args: Any) -> None:
        runs.append(args)
        run(*args)

    run = eager_runs.run_in_eager
    monkeypatch.setattr(eager_runs, "run_in_eager", noted)
    torch.manual_seed(0)
    state = torch.get_rng_state()
    program, x = TAKEN[-1], FLOATS.clone()
    stack.compile(program, x)
    assert len(runs) == 1
    assert torch.equal(torch.get_rng_state(), state)
    stack.compile(lambda x: torch.relu(x @ x), x)
    assert len(runs) == 1


def entropy(x: Tensor) -> Tensor:
    return F.binary_cross_entropy(x, torch.tensor([0.0, 1.0, 0.5]))


def chosen(x: Tensor) -> Tensor:
    return x.masked_scatter(x > 0.4, torch.ones(2)).sum()


def spread(x: Tensor) -> Tensor:
    return torch.normal(x, x - 0.1).sum()


@pytest.mark.each
@ENTRIES
@pytest.mark.parametrize("grad", [False, True], ids=["forward", "grad"])
@pytest.mark.parametrize(
    ("program", "good", "bad"),
    [
        (entropy, [0.0, 1.0, 0.3], [0.5, 1.5, 0.2]),
        (entropy, [0.5, 0.5, 0.3], [0.5, float("nan"), 0.2]),
        (chosen, [0.5, 0.1, 0.6], [0.5, 0.6, 0.7]),
        (spread, [0.2, 0.1, 0.6], [0.05, 0.6, 0.7]),
    ],
)
def test_values_that_eager_refuses_raise_in_a_call(
    entry: Program, grad: bool, program: Program, good: list[float], bad: list[float]
) -> None:
    right = torch.tensor(good, requires_grad=grad)
    call = entry(program, right)
    torch.manual_seed(0)
    want = program(right)
    torch.manual_seed(0)
    torch.testing.assert_close(call(right), want)
    wrong = torch.tensor(bad, requires_grad=grad)
    with pytest.raises(RuntimeError) as eager:
        program(wrong)
    with pytest.raises(RuntimeError) as raised:
        call(wrong)
    assert str(eager.value).splitlines()[0] in str(raised.value)
