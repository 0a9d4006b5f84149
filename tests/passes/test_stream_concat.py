"""Single elements beside a row: a column before a softmax, a bound of its max, one more term."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from rule_cases import Kept, Rewrites, check_kept, check_rewrite
from stream_blocks import array_of, check, limited, wide
from stream_harness import check_tiles, prepared, streamed, streams
from stream_variants import normal

import stack

torch = pytest.importorskip("torch")
Tensor = Any
Program = Callable[..., Any]
M, N = 40, 93
LEAST = torch.finfo(torch.float32).min


def scores(q: Tensor, k: Tensor, fill: float = -torch.inf) -> Tensor:
    i, j = torch.arange(q.shape[-2])[:, None], torch.arange(k.shape[-2])
    return (q @ k.mT).masked_fill(j > i, fill)


def column(s: Tensor, b: Tensor) -> Tensor:
    return b[None, :, None, None].expand(s.shape[0], -1, s.shape[2], 1)


def last(q: Tensor, k: Tensor, v: Tensor, b: Tensor) -> Tensor:
    s = scores(q, k)
    return torch.softmax(torch.cat([s, column(s, b)], -1), -1)[..., :-1] @ v


def first(q: Tensor, k: Tensor, v: Tensor, b: Tensor) -> Tensor:
    s = scores(q, k)
    return torch.softmax(torch.cat([column(s, b), s], -1), -1)[..., 1:] @ v


def two(q: Tensor, k: Tensor, v: Tensor, b: Tensor) -> Tensor:
    s = scores(q, k)
    joined = torch.cat([column(s, b), s, column(s, b)], -1)
    return torch.softmax(joined, -1)[..., 1:-1] @ v


def away(q: Tensor, k: Tensor, v: Tensor, b: Tensor) -> Tensor:
    """As transformers writes gpt-oss: the max is taken away twice, the mask is finite."""
    s = scores(q, k, LEAST)
    joined = torch.cat([s, column(s, b)], -1)
    joined = joined - joined.max(-1, keepdim=True).values
    return torch.softmax(joined, -1, dtype=joined.dtype)[..., :-1] @ v


def bounded(q: Tensor, k: Tensor, v: Tensor, b: Tensor) -> Tensor:
    s, b = scores(q, k), b[None, :, None, None]
    m = torch.maximum(s.amax(-1, keepdim=True), b)
    e = torch.exp(s - m)
    return (e @ v) / (e.sum(-1, keepdim=True) + torch.exp(b - m))


def plus_one(q: Tensor, k: Tensor, v: Tensor, b: Tensor) -> Tensor:
    s = scores(q, k)
    m = s.amax(-1, keepdim=True)
    e = torch.exp(s - m)
    return (e / (torch.exp(-m) + e.sum(-1, keepdim=True))) @ v


def plus_one_above_0(q: Tensor, k: Tensor, v: Tensor, b: Tensor) -> Tensor:
    s = scores(q, k)
    m = s.amax(-1, keepdim=True).clamp(min=0)
    e = torch.exp(s - m)
    return (e / (torch.exp(-m) + e.sum(-1, keepdim=True))) @ v


def padded(q: Tensor, k: Tensor, v: Tensor, b: Tensor) -> Tensor:
    joined = torch.nn.functional.pad(scores(q, k), (1, 0))
    return torch.softmax(joined, -1)[..., 1:] @ v


PROGRAMS = (last, first, two, away, bounded, plus_one, plus_one_above_0, padded)


def arrays(rng: np.random.Generator, batch: int = 2) -> list[Tensor]:
    q, k, v = (normal(rng, batch, 3, n, 16) for n in (M, N, N))
    return [q, k, v, normal(rng, 3) * 3]


@pytest.mark.each
@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("batch", [1, 2])
def test_one_pass(program: Program, batch: int, rng: np.random.Generator) -> None:
    func = check(program, arrays(rng, batch))
    assert [n.op for n in func.nodes if n.op not in ("reshape", "item")] == ["kernel"]
    assert limited(func)


@pytest.mark.every(3)
@pytest.mark.parametrize("program", PROGRAMS)
def test_running_values_in_tiles(program: Program, rng: np.random.Generator) -> None:
    args = arrays(rng)
    func, notes = streamed(prepared(stack.trace(program, *args)))
    assert len(streams(func)) == 1, notes
    check_tiles(func, [array_of(a) for a in args], wide(program, args), 1e-5)


@pytest.mark.each
@pytest.mark.parametrize("shift", [-1e4, -200.0, 200.0, 1e4, -np.inf])
@pytest.mark.parametrize("program", [last, away, bounded])
def test_far_from_the_row(program: Program, shift: float, rng: np.random.Generator) -> None:
    """Above the row nothing is left of it; below the row nothing of the element."""
    q, k, v, b = arrays(rng)
    check(program, [q, k, v, b + shift])


def test_rows_without_a_visible_place(rng: np.random.Generator) -> None:
    """All weight is on the element beside them: 0, and not nan."""

    def program(q: Tensor, k: Tensor, v: Tensor, b: Tensor) -> Tensor:
        i, j = torch.arange(M)[:, None], torch.arange(N)
        s = (q @ k.mT).masked_fill((j > i) | (i < 5), -torch.inf)
        return torch.softmax(torch.cat([s, column(s, b)], -1), -1)[..., :-1] @ v

    args = arrays(rng)
    assert not program(*args)[:, :, :5].any()
    check(program, args)


def test_rows_alone(rng: np.random.Generator) -> None:
    """A log of a sum with one more term; no product is in it."""

    def program(x: Tensor, b: Tensor) -> Tensor:
        return torch.logsumexp(torch.cat([x, b], -1), -1)

    check(program, [normal(rng, 5, 101), normal(rng, 5, 1)])


# ---- the rewrite

X = "%x: f32[3, 9], %b: f32[3, 1]"
JOIN = "%c = concat(%x, %b) {axis=1} : f32[3, 10]\n"
REWRITES: Rewrites = {
    "a max": (
        X,
        JOIN + '%z = reduce(%c) {axes=[1], kind="max"} : f32[3]',
        """%m = reduce(%x) {axes=[1], kind="max"} : f32[3]
        %r = reshape(%b) : f32[3]
        %z = max(%m, %r) : f32[3]""",
    ),
    "a sum of what is computed from it": (
        X,
        JOIN + '%e = exp(%c) : f32[3, 10]\n%z = reduce(%e) {axes=[1], kind="sum"} : f32[3]',
        """%e = exp(%x) : f32[3, 9]
        %m = reduce(%e) {axes=[1], kind="sum"} : f32[3]
        %r = reshape(%b) : f32[3]
        %f = exp(%r) : f32[3]
        %z = add(%m, %f) : f32[3]""",
    ),
    "numbers on both sides": (
        "%x: f32[3, 9]",
        "%c = pad(%x, 2.0:f32) {high=[0, 1], interior=[0, 0], low=[0, 1]} : f32[3, 11]\n"
        '%z = reduce(%c) {axes=[1], kind="min"} : f32[3]',
        """%m = reduce(%x) {axes=[1], kind="min"} : f32[3]
        %r = broadcast(2.0:f32) {axes=[]} : f32[3]
        %y = min(%m, %r) : f32[3]
        %z = min(%y, %r) : f32[3]""",
    ),
}
KEPT: Kept = {
    "two long parts": (
        "%x: f32[3, 9], %b: f32[3, 2]",
        "%c = concat(%x, %b) {axis=1} : f32[3, 11]\n"
        '%z = reduce(%c) {axes=[1], kind="max"} : f32[3]',
    ),
    "an axis that is not reduced": (
        "%x: f32[9, 3], %b: f32[1, 3]",
        "%c = concat(%x, %b) {axis=0} : f32[10, 3]\n"
        '%z = reduce(%c) {axes=[1], kind="max"} : f32[10]',
    ),
    "rows that are needed as they are": (
        X,
        JOIN + '%m = reduce(%c) {axes=[1], kind="max"} : f32[3]\n'
        "%r = broadcast(%m) {axes=[0]} : f32[3, 10]\n%z = sub(%c, %r) : f32[3, 10]",
    ),
    "a slice with the element in it": (
        X,
        JOIN + '%m = reduce(%c) {axes=[1], kind="max"} : f32[3]\n'
        "%s = slice(%c) {limit=[3, 10], start=[0, 1], step=[1, 1]} : f32[3, 9]\n"
        "%r = broadcast(%m) {axes=[0]} : f32[3, 9]\n%z = sub(%s, %r) : f32[3, 9]",
    ),
    "nothing is reduced": (
        X,
        JOIN + "%e = exp(%c) : f32[3, 10]\n"
        "%z = slice(%e) {limit=[3, 9], start=[0, 0], step=[1, 1]} : f32[3, 9]",
    ),
    "sums that round at 16 bits": (
        X.replace("f32", "bf16"),
        JOIN.replace("f32", "bf16") + '%z = reduce(%c) {axes=[1], kind="sum"} : bf16[3]',
    ),
    "a pad by more than one": (
        "%x: f32[3, 9]",
        "%c = pad(%x, 2.0:f32) {high=[0, 2], interior=[0, 0], low=[0, 0]} : f32[3, 11]\n"
        '%z = reduce(%c) {axes=[1], kind="min"} : f32[3]',
    ),
}


@pytest.mark.parametrize("name", REWRITES)
def test_parts_of_a_row(name: str) -> None:
    check_rewrite("stream", REWRITES[name])


@pytest.mark.parametrize("name", KEPT)
def test_what_stays(name: str) -> None:
    check_kept("stream", KEPT[name])


def test_a_row_that_is_no_bound_is_told(rng: np.random.Generator) -> None:
    """The least of the max and a number is below elements: exp of them could be infinite."""

    def program(q: Tensor, k: Tensor, v: Tensor, b: Tensor) -> Tensor:
        s, b = scores(q, k), b[None, :, None, None]
        e = torch.exp(s - torch.minimum(s.amax(-1, keepdim=True), b))
        return (e @ v) / e.sum(-1, keepdim=True)

    func, notes = streamed(prepared(stack.trace(program, *arrays(rng))))
    assert not any(n.attrs["name"].startswith("max_") for n in streams(func)), notes
