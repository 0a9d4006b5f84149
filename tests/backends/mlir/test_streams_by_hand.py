"""Streams on a CPU by lists of steps: rows in one pass over memory, and attention."""

from __future__ import annotations

from typing import Any

import pytest

import stack
from stack.errors import StackError

torch = pytest.importorskip("torch")
F = torch.nn.functional

# everything is streamed, however short its axis is
PASSES = (
    "canonicalize,decompose,canonicalize,layout,canonicalize,stream{min_axis=2},"
    "fuse,schedule{loops=cpu}"
)


def logs(x: Any, _: Any) -> Any:
    y = torch.logsumexp(x, -1)
    return y


def softmax(x: Any, _: Any) -> Any:
    y = torch.softmax(x, -1)
    return y


def loss(x: Any, target: Any) -> Any:
    y = F.cross_entropy(x, target, reduction="none")
    return y


def norm(x: Any, _: Any) -> Any:
    y = F.layer_norm(x, (x.shape[-1],))
    return y


@pytest.mark.each
@pytest.mark.parametrize("tail", ["mask", "peel"])
@pytest.mark.parametrize("program", [logs, softmax, loss, norm])
def test_rows(program: Any, tail: str) -> None:
    args = torch.randn(3, 1003), torch.tensor([0, 1002, 7])
    steps = f"split r 64 tail={tail}; block r.1; vectorize r.1; bind i cores"
    made = stack.compile(program, *args, schedule={"y": steps}, passes=PASSES)
    torch.testing.assert_close(made(*args), program(*args), rtol=1e-4, atol=1e-5)


@pytest.mark.each
@pytest.mark.parametrize("program", [logs, softmax, loss, norm])
@pytest.mark.parametrize("size", [7, 1003, 2500])
def test_rows_by_the_policy(program: Any, size: int) -> None:
    args = torch.randn(3, size), torch.tensor([0, size - 1, 6])
    made = stack.compile(program, *args, passes=PASSES)
    assert {kernel.kind for kernel in made.run.kernels} == {"generated"}
    torch.testing.assert_close(made(*args), program(*args), rtol=1e-4, atol=1e-5)


def attention(q: Any, k: Any, v: Any) -> Any:
    o = torch.softmax(q @ k.transpose(-1, -2) * 0.25, -1) @ v
    return o


@pytest.mark.parametrize(
    "steps",
    [
        "vectorize c; vectorize k; bind i cores",
        "split r 16; block r.1; vectorize k; unroll r.1; vectorize c; bind i cores",
        "split r 32 tail=peel; block r.1; vectorize c; vectorize k; bind i cores",
    ],
)
def test_attention(steps: str) -> None:
    args = [torch.randn(3, n, 16) for n in (20, 70, 70)]
    made = stack.compile(attention, *args, schedule={"o": steps}, passes=PASSES)
    torch.testing.assert_close(made(*args), attention(*args), rtol=1e-4, atol=1e-5)


def test_an_online_loop_has_no_vectors_before_it_is_blocked() -> None:
    args = [torch.randn(3, n, 16) for n in (20, 70, 70)]
    with pytest.raises(StackError, match="rescales what it carries: step `block` adds at once"):
        stack.compile(attention, *args, schedule={"o": "vectorize r"}, passes=PASSES)
