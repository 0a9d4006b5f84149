"""Symbolic sizes through `capture`: types, arithmetic, several bindings of one function."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch_harness import capture, run

from stack.demos import models, models_torch


def check_sizes(fn: Any, *calls: Any) -> Any:
    """Captured for the first call, right for all of them."""
    captured = capture(fn, *calls[0], dynamic=True)
    assert captured.func.symbols
    for args in calls:
        with torch.no_grad():
            torch.testing.assert_close(run(captured, *args), fn(*args), rtol=1e-5, atol=1e-5)
    return captured


def shaped(*sizes: int) -> torch.Tensor:
    return torch.randn(sizes, generator=torch.Generator().manual_seed(sum(sizes)))


def test_sizes_in_types() -> None:
    captured = check_sizes(lambda x: x.flatten() * 2, (shaped(3, 4),), (shaped(5, 2),))
    assert str(captured.func.params[0].type) == "f32[s0, s1]"
    assert str(captured.func.results[0].type) == "f32[s0*s1]"


def test_sizes_as_values() -> None:
    captured = check_sizes(lambda x: x.mean(0) * x.shape[1], (shaped(3, 4),), (shaped(6, 3),))
    assert "size" in {n.op for n in captured.func.nodes}


def test_symbolic_sizes_of_views_of_known_tensors() -> None:
    check_sizes(
        lambda x, one: one.expand(x.shape[0], x.shape[1]) + one.view(1, 1).expand_as(x),
        (shaped(3, 4), shaped(1, 1)),
        (shaped(5, 2), shaped(1, 1)),
    )


def test_marked_sizes_only() -> None:
    x = shaped(3, 4)
    torch._dynamo.mark_dynamic(x, 0)
    captured = capture(lambda v: v + 1, x)
    assert str(captured.func.params[0].type) == "f32[s0, 4]"
    assert captured.func.symbols[0].low == 2


@pytest.mark.every(2)
@pytest.mark.parametrize(
    "fn",
    [
        lambda x: torch.cat([x, x[1:]], 0),
        lambda x: x[:, None].expand(-1, 3, -1).reshape(x.shape[0] * 3, -1),
        lambda x: F.pad(x, (1, 2)).transpose(0, 1),
        lambda x: torch.arange(x.shape[0])[:, None] + x,
        lambda x: x.softmax(-1).cumsum(0),
        lambda x: torch.full((x.shape[1], 2), 3.0).sum(0) + x.sum(),
        lambda x: torch.triu(x @ x.t()),
        lambda x: x.var(1) + x.std(1),
        lambda x: x.view(x.shape[0], 2, x.shape[1] // 2).sum(1),
        lambda x: x.chunk(2, -1)[0] * 2,
        lambda x: x.repeat(2, 1),
        lambda x: x.flip(0).sort(0).values,
    ],
)
def test_shapes(fn: Any) -> None:
    check_sizes(fn, (shaped(4, 6),), (shaped(3, 8),))


def test_llama_block_at_any_length() -> None:
    cfg = models.LlamaConfig(width=32, heads=4, kv_heads=2, ffn=64, seq=16, batch=2)
    module, (x,) = models_torch.make_llama_block(cfg)
    x = x[:, :6].clone()
    torch._dynamo.mark_dynamic(x, 1)
    captured = capture(module, x)
    assert "f32[2, s0, 32]" in str(captured.func)
    for length in (6, 11):
        x = torch.randn(2, length, 32)
        torch.testing.assert_close(run(captured, x), module(x).detach(), rtol=1e-4, atol=1e-5)


def test_embedding_bounds_follow_symbols() -> None:
    captured = capture(lambda t, i: t[i], shaped(5, 3), torch.tensor([1, 2, 0]), dynamic=True)
    run(captured, shaped(9, 3), torch.tensor([8, 1]))
    with pytest.raises(IndexError, match="'i'"):
        run(captured, shaped(4, 3), torch.tensor([4, 1]))


def test_wrong_rank() -> None:
    captured = capture(nn.Linear(4, 2), shaped(3, 4), dynamic=True)
    with pytest.raises(ValueError, match="'input'"):
        captured.flatten(shaped(3))


def test_another_path_is_another_program() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return x * 2 if x.shape[0] > 5 else x - 1

    captured = capture(f, shaped(8, 3), dynamic=True)
    torch.testing.assert_close(run(captured, shaped(7, 3)), shaped(7, 3) * 2)
    with pytest.raises(ValueError, match="s0"):
        captured.flatten(shaped(4, 3))


def test_size_one_is_another_program() -> None:
    captured = capture(lambda x, y: x + y, shaped(4, 3), shaped(4, 3), dynamic=True)
    with pytest.raises(ValueError, match="compiled for sizes"):
        captured.flatten(shaped(1, 3), shaped(1, 3))


def test_floats_made_of_sizes() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return x / math.sqrt(x.shape[-1]) + x.shape[0] ** 0.5 + 1 / x.shape[1]

    check_sizes(f, (shaped(4, 6),), (shaped(3, 8),))


RAGGED = {
    "scaled": lambda x: x * 2 + x.sin(),
    "normed": lambda x: torch.nn.functional.layer_norm(x, (4,)).softmax(-1),
    "padded": lambda x: torch.nested.to_padded_tensor(x, 0.0),
}


def ragged(lengths: Sequence[int], seed: int) -> torch.Tensor:
    rows = torch.randn(sum(lengths), 4, generator=torch.Generator().manual_seed(seed))
    made: Any = torch.nested.nested_tensor(list(rows.split(list(lengths))), layout=torch.jagged)
    return made.requires_grad_()


@pytest.mark.parametrize("offset", [0, 1, -2])
def test_diagonals(offset: int) -> None:
    """The step between elements of a diagonal is an expression of the size."""
    captured = check_sizes(
        lambda x: (x @ x.mT).diagonal(offset, 1, 2) * 2, (shaped(3, 5, 4),), (shaped(2, 9, 4),)
    )
    assert "opaque" not in {n.op for n in captured.func.nodes}


@pytest.mark.every(2)
@pytest.mark.parametrize("name", RAGGED)
def test_ragged_tensors(name: str) -> None:
    """Torch passes a size that is no number, which no array of ours has."""

    def values(x: torch.Tensor) -> torch.Tensor:
        return x.values() if x.is_nested else x

    torch._dynamo.reset()
    call = torch.compile(RAGGED[name], backend="stack")
    for lengths in ((2, 4), (3, 1, 5)):
        x, twin = ragged(lengths, 0), ragged(lengths, 0)
        found, want = values(call(x)), values(RAGGED[name](twin))
        torch.testing.assert_close(found, want)
        found.cos().sum().backward()
        want.cos().sum().backward()
        assert x.grad is not None
        assert twin.grad is not None
        torch.testing.assert_close(x.grad.values(), twin.grad.values())
