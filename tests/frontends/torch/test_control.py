"""Graphs inside of graphs: conditions, loops, `flex_attention`, marked regions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._higher_order_ops.while_loop import while_loop
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

import stack
import stack.frontends.torch

_BIAS = torch.randn(2, 31)


def compiled(fn: Any) -> Any:
    torch._dynamo.reset()
    return torch.compile(fn, backend="stack", fullgraph=True)


def agree(call: Any, fn: Any, *args: Any) -> None:
    """Both give the same, and nothing was left to torch."""
    torch.testing.assert_close(call(*args), fn(*args), rtol=1e-5, atol=1e-5)
    assert stack.frontends.torch.runs()[-1].coverage["fallback"] == 0


def by_size(x: torch.Tensor) -> torch.Tensor:
    return torch.cond(x.shape[0] > 4, torch.sin, torch.cos, (x,))  # pyright: ignore


def by_sign(x: torch.Tensor) -> torch.Tensor:
    sides = (lambda x: x.sin() * x.shape[0], lambda x: x.cos())
    return torch.cond(x.sum() > 0, *sides, (x,))  # pyright: ignore


@pytest.mark.parametrize("fn", [by_size, by_sign])
def test_conditions_of_sizes_that_change(fn: Callable[..., torch.Tensor]) -> None:
    call = compiled(fn)
    for size in (3, 5, 4, 7):
        for sign in (1, -1):
            agree(call, fn, torch.full((size,), 0.5 * sign))


def looked_up(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
    sides = (lambda x, i: x[i], lambda x, i: x[i + 1])
    return torch.cond(x.sum() > 0, *sides, (x, i))  # pyright: ignore


def test_an_index_in_a_branch_raises_where_that_is_taken() -> None:
    call = compiled(looked_up)
    x, last = torch.rand(5) + 1, torch.tensor([0, 4])
    agree(call, looked_up, x, last)
    agree(call, looked_up, x, -last - 1)
    with pytest.raises(IndexError):
        call(-x, last)
    with pytest.raises(IndexError):
        call(x, last + 1)
    agree(call, looked_up, -x, last - 1)


def stepped(x: torch.Tensor, n: torch.Tensor) -> Any:
    start = (torch.zeros((), dtype=torch.long), x)
    return while_loop(
        lambda i, x: i < n, lambda i, x: (i + 1, x + x.index_select(0, i.view(1))), start
    )


def test_an_index_of_a_step_raises_after_the_loop() -> None:
    call = compiled(stepped)
    x = torch.randn(4)
    for n in (0, 1, 4):
        agree(call, stepped, x, torch.tensor(n))
    with pytest.raises(IndexError):
        call(x, torch.tensor(5))


def test_map() -> None:
    def fn(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch._higher_order_ops.map(lambda x, y: x.sin() + y, x, y)  # pyright: ignore

    for rows in (1, 5):
        agree(compiled(fn), fn, torch.randn(rows, 3), torch.randn(3))


CONSTANTS = [2.5, 3, True, None, 2j, torch.float64, "tanh"]


def test_map_with_what_is_no_tensor() -> None:
    """Between tensors, so that each must find its own place."""

    def row(x: torch.Tensor, y: torch.Tensor, constant: Any, z: torch.Tensor) -> torch.Tensor:
        if isinstance(constant, str):
            return torch.nn.functional.gelu(x, approximate=constant) - y * z
        if isinstance(constant, torch.dtype):
            return x.to(constant) - y * z
        wide = x - y * z if constant is None else (x - y) * constant + z
        return torch.view_as_real(wide) if isinstance(constant, complex) else wide

    def fn(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> list[torch.Tensor]:
        return [torch._higher_order_ops.map(row, x, y, c, z) for c in CONSTANTS]  # pyright: ignore

    args = (torch.randn(4, 3), torch.randn(3), torch.randn(3))
    found = stack.compile(fn, *args, dynamic=True)(*args)
    torch.testing.assert_close(found, fn(*args), rtol=1e-5, atol=1e-5)


def test_numbers_that_vmap_promotes() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        return torch.vmap(lambda v: v * 0.1)(x)

    agree(compiled(fn), fn, torch.arange(5))


def moved(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
    return flex_attention(q, k, v, score_mod=lambda s, b, h, i, j: s + (i - j) * 0.1 * h)


def biased(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
    return flex_attention(q, k, v, score_mod=lambda s, b, h, i, j: s + _BIAS[h, i - j + 15])


def masked(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
    def seen(b: Any, h: Any, i: Any, j: Any) -> Any:  # a row sees nothing
        return (i >= j) & (i != 3)

    mask = create_block_mask(seen, None, None, 16, 16, device="cpu")
    return flex_attention(q, k, v, block_mask=mask, return_lse=True)


def grouped(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
    return flex_attention(q, k[:, :1], v[:, :1], enable_gqa=True, scale=0.3)


@pytest.mark.every(3)
@pytest.mark.parametrize("fn", [moved, biased, masked, grouped])
def test_flex_attention(fn: Callable[..., Any]) -> None:
    args = [torch.randn(2, 16, 2, 16).transpose(1, 2) for _ in range(3)]
    call = compiled(fn)
    agree(call, fn, *args)
    made, eager = call(*args), fn(*args)
    made, eager = (x[0] if isinstance(x, tuple) else x for x in (made, eager))
    assert made.stride() == eager.stride()


def test_a_marked_region_has_gradients() -> None:
    region: Any = torch.compiler.nested_compile_region(lambda x, w: (x @ w).relu())

    def fn(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return region(region(x, w), w)

    grads: list[list[torch.Tensor]] = []
    x, w = torch.randn(5, 3), torch.randn(3, 3)
    for call in (compiled(fn), fn):
        leaves = [t.clone().requires_grad_() for t in (x, w)]
        call(*leaves).square().sum().backward()
        grads.append([t.grad for t in leaves if t.grad is not None])
    torch.testing.assert_close(*grads, rtol=1e-4, atol=1e-5)


def test_gradients_of_whole_slices_of_sizes_that_change() -> None:
    """Torch says 2**63 - 1 for how far `x[:]` goes."""

    def fn(x: torch.Tensor) -> torch.Tensor:
        return x[:, None, :].expand(-1, 3, -1).sin()

    call = torch.compile(fn, backend="stack", dynamic=True)
    for size in (5, 7):
        grads: list[Any] = []
        for f in (call, fn):
            x = torch.arange(2.0 * size).reshape(2, size).requires_grad_()
            f(x).square().sum().backward()
            grads.append(x.grad)
        torch.testing.assert_close(*grads)
        assert stack.frontends.torch.runs()[-1].coverage["fallback"] == 0


def test_sizes_without_a_form_are_captured_again() -> None:
    """Half of a size, rounded down by way of a float."""

    def fn(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.interpolate(x, scale_factor=(0.5, 1.7))

    call = torch.compile(fn, backend="stack", dynamic=True)
    for rows, columns in ((4, 6), (5, 6), (7, 9)):
        x = torch.randn(1, 2, rows, columns)
        torch.testing.assert_close(call(x), fn(x))
