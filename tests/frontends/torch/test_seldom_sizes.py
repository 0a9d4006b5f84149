"""Programs of many sizes: the first sets are compiled, torch runs others until they come often."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from stack.frontends.torch.compile.dynamo_backend import GRAPHS
from stack.run.met_sizes import MANY_SIZES, OFTEN, MetSizes, SeldomSizes

FIRST = range(3, 3 + MANY_SIZES)


@pytest.fixture(autouse=True)
def fresh() -> None:
    torch._dynamo.reset()
    GRAPHS.clear()


def sets() -> int:
    """The number of sets of sizes that something is compiled for."""
    return sum(len(graph.executables) for graph in GRAPHS)


def filled(fn: Callable[..., Any], call: Callable[[Any, int], Any], **options: Any) -> Any:
    """Compiles a function, and calls it once for each of the first sizes, without a warning."""
    made = torch.compile(fn, backend="stack", dynamic=True, options=options or None)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for size in FIRST:
            call(made, size)
    return made


def test_seldom_sizes_run_in_torch_until_they_come_often() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x @ x.mT, -1)

    call = filled(fn, lambda made, size: made(torch.randn(size, 70)))
    assert sets() == MANY_SIZES
    x = torch.randn(41, 70)
    told = r"each set of sizes.*41, s1 = 70\); others run in torch.*pad"
    with pytest.warns(UserWarning, match=told):
        torch.testing.assert_close(call(x), fn(x))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(OFTEN - 2):
            torch.testing.assert_close(call(x), fn(x))
        call(torch.randn(42, 70))
        call(torch.randn(FIRST[0], 70))
        assert sets() == MANY_SIZES
        torch.testing.assert_close(call(x), fn(x))
    assert sets() == MANY_SIZES + 1
    [graph] = GRAPHS
    assert f"{MANY_SIZES + 1} run(s), 1 call(s) by torch" in repr(graph)


def test_strict_programs_are_compiled_for_all_sizes() -> None:
    def call(made: Any, size: int) -> Any:
        return made(torch.ones(size))

    made = torch.compile(lambda x: x * 2, backend="stack", dynamic=True, options={"strict": True})
    for size in FIRST[:-1]:
        call(made, size)
    with pytest.warns(UserWarning, match="others are compiled too.*cache of fixed size"):
        call(made, FIRST[-1])
    call(made, 40)
    assert sets() == MANY_SIZES + 1


def test_gradients_of_seldom_sizes() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, 2))
    twin = copy.deepcopy(net)
    call = filled(net, lambda made, size: made(torch.randn(size, 4)).sum().backward())
    net.zero_grad()
    before = sets()
    x = torch.randn(50, 4)
    with pytest.warns(UserWarning, match="others run in torch"):
        call(x).square().sum().backward()
    twin(x).square().sum().backward()
    assert sets() == before
    for mine, theirs in zip(net.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad)


class _Counts(nn.Module):
    """Writes to a buffer and to its argument, and returns a view and an argument."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        self.seen += x.sum()
        y.mul_(2)
        return x[1:], y, (x * y).mT, x * torch.rand_like(x)


def test_writes_views_and_random_numbers_of_seldom_sizes() -> None:
    with torch.no_grad():
        mine, theirs = _Counts(), _Counts()
        call = filled(mine, lambda made, size: made(torch.ones(size, 70), torch.ones(size, 70)))
        mine.seen.zero_()
        x = torch.randn(60, 70)
        y, other = torch.ones(60, 70), torch.ones(60, 70)
        torch.manual_seed(3)
        with pytest.warns(UserWarning, match="others run in torch"):
            found = call(x, y)
        torch.manual_seed(3)
        want = theirs(x, other)
        torch.testing.assert_close(found, want)
        torch.testing.assert_close((mine.seen, y), (theirs.seen, other))
        assert found[0].data_ptr() == want[0].data_ptr()  # a view of the argument
        assert found[1] is y


def test_autocast_is_not_applied_again() -> None:
    def fn(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            y = x @ w
        return y.float() @ w

    w = torch.randn(4, 4)
    with torch.autocast("cpu", torch.bfloat16, enabled=False), torch.no_grad():
        call = filled(fn, lambda made, size: made(torch.ones(size, 4), w))
        x = torch.randn(70, 4)
        with pytest.warns(UserWarning, match="others run in torch"):
            torch.testing.assert_close(call(x, w), fn(x, w), rtol=0.02, atol=0.02)


def test_sizes_that_only_numbers_tell() -> None:
    def fn(x: torch.Tensor, count: int) -> torch.Tensor:
        return x.sum() + torch.arange(count)

    x = torch.randn(3)
    call = filled(fn, lambda made, size: made(x, size))
    before = sets()
    with pytest.warns(UserWarning, match="others run in torch"):
        torch.testing.assert_close(call(x, 90), fn(x, 90))
    assert sets() == before


def test_the_interpreter_runs_all_sizes() -> None:
    def fn(x: torch.Tensor, count: int) -> torch.Tensor:
        return x.sum() + torch.arange(count)

    x = torch.randn(3)
    call = filled(fn, lambda made, size: made(x, size), backend="interpreter")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        torch.testing.assert_close(call(x, 90), fn(x, 90))


def test_a_framework_runs_sizes_until_they_are_often() -> None:
    met = MetSizes("f", "torch")
    for size in FIRST:
        met.ask((("n", size),))
    assert met.is_full
    with pytest.warns(UserWarning, match=r"f is compiled .* met 16 \(now n = 99\)"):
        refused = [_is_refused(met, 99) for _ in range(OFTEN)]
    assert refused == [True] * (OFTEN - 1) + [False]
    assert met.compiled == MANY_SIZES + 1


def _is_refused(met: MetSizes, size: int) -> bool:
    try:
        met.ask((("n", size),))
    except SeldomSizes:
        return True
    return False
