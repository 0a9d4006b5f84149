"""Grouped products: rows in groups, one matrix for each."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch_harness import check

import stack

Tensor = torch.Tensor
ENDS = {
    "some": [3, 4, 9],
    "an empty group": [0, 5, 5],
    "all in one": [9, 9, 9],
    "rows of none": [2, 3, 4],
}


def one_by_one(x: Tensor, weight: Tensor, ends: list[int]) -> Tensor:
    """In double precision; 0 for rows of no group."""
    out = torch.zeros(x.shape[0], weight.shape[2], dtype=torch.float64)
    first = 0
    for end, matrix in zip(ends, weight.double(), strict=True):
        out[first:end] = x[first:end].double() @ matrix
        first = end
    return out


def grouped(x: Tensor, weight: Tensor, offs: Tensor) -> Tensor:
    return torch._grouped_mm(x, weight.transpose(-2, -1), offs=offs)


def operands() -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    return torch.randn(9, 16).bfloat16(), torch.randn(3, 8, 16).bfloat16()


@pytest.mark.parametrize("name", ENDS)
def test_rows_meet_the_matrix_of_their_group(name: str) -> None:
    x, weight = operands()
    offs = torch.tensor(ENDS[name], dtype=torch.int32)
    compiled = stack.compile(grouped, x, weight, offs)
    assert compiled.run.coverage["fallback"] == 0
    want = one_by_one(x, weight.transpose(-2, -1), ENDS[name])
    np.testing.assert_allclose(compiled(x, weight, offs).double(), want, rtol=1e-2, atol=2e-2)


@pytest.mark.parametrize("name", list(ENDS)[:3])
def test_gradients(name: str) -> None:
    """Gradients of the rows and of the matrices; a matrix without rows has none."""
    ends = ENDS[name]
    offs = torch.tensor(ends, dtype=torch.int32)
    x, weight = (a.requires_grad_() for a in operands())
    seed = torch.randn(9, 8).bfloat16()
    torch.compile(grouped, backend="stack")(x, weight, offs).backward(seed)
    wide = [a.detach().double().requires_grad_() for a in (x, weight)]
    one_by_one_of = wide[0].new_zeros(9, 8)
    first = 0
    for group, end in enumerate(ends):
        part = wide[0][first:end] @ wide[1][group].mT
        one_by_one_of = one_by_one_of.index_add(0, torch.arange(first, end), part)
        first = end
    one_by_one_of.backward(seed.double())
    for got, want in zip((x, weight), wide, strict=True):
        assert got.grad is not None
        np.testing.assert_allclose(got.grad.double(), want.grad, rtol=1e-2, atol=2e-2)


def columns(a: Tensor, b: Tensor, offs: Tensor) -> Any:
    return torch._grouped_mm(a, b, offs=offs)


def test_columns_in_groups() -> None:
    torch.manual_seed(0)
    a, b = torch.randn(2, 8, 16).bfloat16(), torch.randn(16, 24).bfloat16()
    offs = torch.tensor([7, 24], dtype=torch.int32)
    compiled = stack.compile(columns, a, b, offs)
    want = torch.cat([a[0].double() @ b[:, :7].double(), a[1].double() @ b[:, 7:].double()], 1)
    np.testing.assert_allclose(compiled(a, b, offs).double(), want, rtol=1e-2, atol=2e-2)
    assert compiled.run.coverage["fallback"] == 0


def test_the_value_in_the_interpreter() -> None:
    x, weight = operands()
    captured = check(grouped, x, weight, torch.tensor([3, 4, 9], dtype=torch.int32), rtol=1e-2)
    assert [n.op for n in captured.func.nodes if n.op == "ragged_dot"]


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
def test_rows_of_none_on_a_gpu(dtype: torch.dtype) -> None:
    """By the library, which leaves them open, and where it has no kernel."""
    import stack.ir as ir
    from stack.frontends.torch.replay.ragged_matmul import ragged_product

    ends = [0, 40, 70]
    x, weight = torch.randn(96, 64).to(dtype), torch.randn(3, 64, 32).to(dtype)
    kind = {torch.bfloat16: "bf16", torch.float16: "f16", torch.float32: "f32"}[dtype]
    types = (ir.tensor(kind, 96, 64), ir.tensor(kind, 3, 64, 32), ir.tensor("i64", 3))
    params = [ir.param(f"p{i}", t) for i, t in enumerate(types)]
    node = ir.Builder().ragged_dot(*params, rule="s! k, g^ k n, g^ -> s! n")
    got = ragged_product(node, x.cuda(), weight.cuda(), torch.tensor(ends).cuda(), dtype)
    limit = 1e-2 if dtype is torch.bfloat16 else 2e-3
    np.testing.assert_allclose(
        got.cpu().double(), one_by_one(x, weight, ends), rtol=limit, atol=10 * limit
    )
