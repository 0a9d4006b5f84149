"""Selects that are branches of a loop over tiles, and those that stay selects."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from stream_harness import prepared, streamed
from stream_variants import HIDDEN, masked, normal

import stack
from stack.ir import Func, Node, parse, verify
from stack.ir.node import walk
from stack.rewrite import Pipeline

torch = pytest.importorskip("torch")
Tensor = Any
SEQ = 190


def lowered(program: Callable[..., Any], args: list[Tensor]) -> Func:
    func, notes = streamed(prepared(stack.trace(program, *args)), "min_axis=2,balance=0")
    assert any(n.op == "stream" for n in func.nodes), notes
    made = Pipeline("fuse,schedule,blocks").run(func, schedules={"*": "m=32 k=32"}).func
    verify(made)
    assert parse(str(made)) is made
    return made


def check(program: Callable[..., Any], args: list[Tensor]) -> Func:
    func = lowered(program, args)
    want = program(*(a.double() if a.is_floating_point() else a for a in args)).numpy()
    with np.errstate(all="ignore"):
        got = func.interpret(*(a.numpy() for a in args))
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
    return func


def branches(func: Func) -> list[Node]:
    return [n for _, n in walk(func.body) if n.op == "loop" and n.attrs["kind"] == "branch"]


def drawn(rng: np.random.Generator) -> list[Tensor]:
    return [normal(rng, 2, SEQ, 16) for _ in range(3)]


BRANCHES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "window": lambda i, j: (j > i) | (i - j >= 70),
    "both": lambda i, j: (j > i) & (j < 50),
    "not both": lambda i, j: ~((j <= i) & (i - j < 90)),
    "a part of it is no line": lambda i, j: (j > i) & ((i * j) % 3 == 1),
}
SELECTS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "below, two loops do": lambda i, j: j > i,
    "no line": lambda i, j: (i * j) % 3 == 1,
    "a line or none": lambda i, j: (j > i) | ((i * j) % 3 == 1),
}


@pytest.mark.every(2)
@pytest.mark.parametrize("name", BRANCHES)
def test_comparisons_of_places(name: str, rng: np.random.Generator) -> None:
    func = check(masked(BRANCHES[name]), drawn(rng))
    (branch,) = branches(func)
    selects = [n for n in branch.blocks[0].nodes if n.op == "select"]
    (select,) = (n for n in selects if n.dtype.is_float)
    assert select.shape == (32, 32)


@pytest.mark.parametrize("name", SELECTS)
def test_what_may_hide_anywhere_stays(name: str, rng: np.random.Generator) -> None:
    assert not branches(check(masked(SELECTS[name]), drawn(rng)))


def test_a_mask_that_is_data_stays(rng: np.random.Generator) -> None:
    def program(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        return torch.softmax((q @ k.mT).masked_fill(mask, HIDDEN), -1) @ v

    mask = torch.from_numpy(rng.random((SEQ, SEQ)) < 0.5)
    assert not branches(check(program, [*drawn(rng), mask]))


@pytest.mark.parametrize("shown", [True, False])
def test_one_condition_for_a_whole_row_of_tiles(shown: bool, rng: np.random.Generator) -> None:
    """A condition that is the same for a whole tile becomes a branch, even if it is data."""

    def program(q: Tensor, k: Tensor, v: Tensor, on: Tensor) -> Tensor:
        scores = q @ k.mT
        line = torch.arange(SEQ)
        hidden = on[:, None, None] & (line[None, :] * line[:, None] % 3 == 1)
        return torch.softmax(scores.masked_fill(hidden, HIDDEN), -1) @ v

    on = torch.tensor([shown, not shown])
    assert len(branches(check(program, [*drawn(rng), on]))) == 1


@pytest.mark.parametrize("fill", [0.5, -9.0])
def test_other_fills_stay(fill: float, rng: np.random.Generator) -> None:
    assert not branches(check(masked(BRANCHES["window"], fill), drawn(rng)))


def test_a_fill_of_zero(rng: np.random.Generator) -> None:
    def program(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        scores = q @ k.mT
        line = torch.arange(SEQ)
        apart = line[None, :] - line[:, None]
        return torch.sigmoid(scores).masked_fill((apart > 60) | (apart < 0), 0.0) @ v

    assert len(branches(check(program, drawn(rng)))) == 1


def test_the_factor_of_what_is_hidden_waits(rng: np.random.Generator) -> None:
    """The branch contains the select, but not the product with 0.25."""

    def program(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        scores = (q @ k.mT) * 0.25
        line = torch.arange(SEQ)
        apart = line[None, :] - line[:, None]
        scores = scores.masked_fill((apart > 0) | (apart < -60), -math.inf)
        return torch.softmax(scores, -1) @ v

    func = check(program, drawn(rng))
    (branch,) = branches(func)
    start = branch.args[2]
    assert start.op == "dot"


def test_sums_of_places_become_floats_axis_by_axis(rng: np.random.Generator) -> None:
    def program(step: int) -> Callable[..., Tensor]:
        def scored(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            line = torch.arange(SEQ)
            apart = (line[None, :] - line[:, None] * step).float()
            return torch.softmax(q @ k.mT - 1e-4 * apart / step, -1) @ v

        return scored

    def casts(func: Func) -> list[Node]:
        nodes = [n for _, n in walk(func.body) if n.op == "cast" and n.dtype.is_float]
        return [n for n in nodes if n.args[0].dtype.is_integer and n.tensor.rank == 2]

    assert not casts(check(program(1), drawn(rng)))
    # not every integer on the way is a number of f32
    assert len(casts(check(program(100_001), drawn(rng)))) == 1
