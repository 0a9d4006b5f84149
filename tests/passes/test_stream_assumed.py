"""Masks of large finite numbers: left out like those of -inf, and right where all of a row is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from stream_blocks import check, limited, loops
from stream_harness import prepared, streamed, streams
from stream_variants import HIDDEN, LIMITS, masked, normal

import stack
from stack.ir import Func, Node
from stack.passes.policies.step_lowering import plain_nest
from stack.passes.steps.assume import MaskAssumptions, assumed
from stack.passes.steps.loops import loops_along
from stack.passes.steps.primitives import parse_steps, run_steps
from stack.target import as_cpu

torch = pytest.importorskip("torch")
Tensor = Any
LEAST = torch.finfo(torch.float32).min


def added(hide: Callable[[Tensor, Tensor], Tensor], fill: float = LEAST) -> Callable[..., Tensor]:
    """The mask as a value that is added, as transformers makes it."""

    def program(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        scores = q @ k.mT
        row = torch.arange(scores.shape[-2])[:, None]
        column = torch.arange(scores.shape[-1])[None, :]
        mask = torch.where(hide(row, column), torch.full((), fill), torch.zeros(()))
        return torch.softmax(scores + mask, -1) @ v

    return program


def arrays(rng: np.random.Generator, rows: int = 90, columns: int = 197) -> list[Tensor]:
    """Values far from 0: a weight that is wrong shows."""
    q, k, v = (normal(rng, 2, n, 16) for n in (rows, columns, columns))
    return [q, k, v + 10]


def repeated(func: Func) -> int:
    """The number of loops that run if the assumption is wrong."""
    return sum(any(n.op == "loop" for n in b.blocks[0].nodes) for b in loops(func, "branch"))


@pytest.mark.each
@pytest.mark.parametrize("name", list(LIMITS))
@pytest.mark.parametrize("form", [masked, added])
def test_tiles_are_left_out(form: Callable[..., Any], name: str, rng: np.random.Generator) -> None:
    """Rows that lose all columns take their mean, hidden or not: so does double precision."""
    func = check(form(LIMITS[name], LEAST), arrays(rng))
    if name == "first columns":  # of the first block: no block is left out
        assert not limited(func) and not repeated(func)
    else:
        assert limited(func) and repeated(func) == 1


@pytest.mark.parametrize("fill", [-1e9, -1e4, float(torch.finfo(torch.bfloat16).min)])
def test_other_numbers(fill: float, rng: np.random.Generator) -> None:
    func = check(masked(LIMITS["window"], fill), arrays(rng))
    assert limited(func) and repeated(func) == 1


def test_added_infinities_hide(rng: np.random.Generator) -> None:
    """-inf that is added hides as -inf that is chosen does, and nothing is computed again."""
    func = check(added(LIMITS["lower"], HIDDEN), arrays(rng, 197))
    assert limited(func) and not repeated(func)


@pytest.mark.parametrize("shift", [-2e4, -1e4, 0.0, 1e4])
def test_scores_near_the_number(shift: float, rng: np.random.Generator) -> None:
    """Hidden elements may be larger than visible ones."""

    def program(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        scores = q @ k.mT + shift
        line = torch.arange(scores.shape[-1])
        hidden = line[None, :] > line[:, None]
        return torch.softmax(scores.masked_fill(hidden, -1e4), -1) @ v

    assert limited(check(program, arrays(rng, 197), 1e-3))


@pytest.mark.parametrize("form", ["both", "one after the other", "added, then chosen"])
def test_padding_leaves_rows_without_a_visible_place(form: str, rng: np.random.Generator) -> None:
    """Their weights are equal over all columns, those that positions hide included."""

    def program(q: Tensor, k: Tensor, v: Tensor, pad: Tensor) -> Tensor:
        scores = q @ k.mT
        line = torch.arange(scores.shape[-1])
        later, pad = line[None, :] > line[:, None], pad[:, None, :]
        if form == "both":
            scores = scores.masked_fill(later | pad, LEAST)
        elif form == "one after the other":
            scores = scores.masked_fill(later, LEAST).masked_fill(pad, LEAST)
        else:
            scores = scores + torch.where(later, torch.full((), LEAST), torch.zeros(()))
            scores = scores.masked_fill(pad, LEAST)
        return torch.softmax(scores, -1) @ v

    pad = torch.zeros(2, 150, dtype=torch.bool)
    pad[0, :70] = True
    assert limited(check(program, [*arrays(rng, 150, 150), pad]))


def test_sums_that_follow_the_max(rng: np.random.Generator) -> None:
    """The log of the sum, and a second softmax of the same scores."""

    def program(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        scores = q @ k.mT
        line = torch.arange(scores.shape[-1])
        scores = scores.masked_fill(line[None, :] > line[:, None] - 3, LEAST)
        return torch.softmax(scores, -1) @ v, torch.logsumexp(scores, -1)

    assert limited(check(program, arrays(rng, 130, 130)))


# ---- what may not be assumed


def test_numbers_that_are_near_or_positive(rng: np.random.Generator) -> None:
    for fill in (-5.0, 0.5, 1e9):
        assert not limited(check(masked(LIMITS["lower"], fill), arrays(rng, 130)))


def test_sums_in_which_a_score_is_left(rng: np.random.Generator) -> None:
    """-1e9 and a score of 1e9 are 0."""
    assert not limited(check(added(LIMITS["lower"], -1e9), arrays(rng, 130)))


def test_a_mask_of_data_has_no_tiles_to_leave_out(rng: np.random.Generator) -> None:
    def program(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        return torch.softmax((q @ k.mT).masked_fill(mask, LEAST), -1) @ v

    mask = torch.from_numpy(rng.integers(0, 2, (90, 197)) == 1)
    mask[3] = True
    func = check(program, [*arrays(rng), mask])
    assert not limited(func) and not repeated(func)


def test_the_max_of_other_values(rng: np.random.Generator) -> None:
    """The maximum of all scores does not bound the distance of the mask."""

    def program(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        scores = q @ k.mT
        line = torch.arange(scores.shape[-1])
        hidden = scores.masked_fill(line[None, :] > line[:, None], -1e4)
        weights = torch.exp(hidden - scores.amax(-1, keepdim=True))
        return (weights @ v) / weights.sum(-1, keepdim=True)

    func = check(program, arrays(rng, 130, 130), 1e-4)
    assert not limited(func) and not repeated(func)


def assumed_in(stream: Node) -> MaskAssumptions | None:
    """The assumptions in the loop over blocks of keys."""
    steps = "split j 16; split r 16; block r.1; vectorize j.1"
    kernel = run_steps(plain_nest(stream, as_cpu(None)), parse_steps(steps))
    (loop, *_) = (loop for loop, _ in loops_along(kernel, "r.0"))
    return assumed(loop.blocks[0])


def test_states_that_say_nothing() -> None:
    """A product of the masked values themselves has them all."""

    def program(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        scores = q @ k.mT
        line = torch.arange(scores.shape[-1])
        scores = scores.masked_fill(line[None, :] > line[:, None], -1e4)
        return torch.softmax(scores, -1) @ v + scores @ v

    zeros = [torch.zeros(2, 64, 16)] * 3
    for stream in streams(streamed(prepared(stack.trace(program, *zeros)))[0]):
        assert assumed_in(stream) is None


def test_what_is_assumed_is_told() -> None:
    zeros = [torch.zeros(2, 64, 16)] * 3
    func, _ = streamed(prepared(stack.trace(masked(LIMITS["lower"], -1e9), *zeros)))
    found = assumed_in(streams(func)[0])
    assert found is not None and [*found.floors.values()] == [-5e8]
    assert [mask.shown for mask in found.masks] == [2]
