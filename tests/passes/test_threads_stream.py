"""Streams on the threads of a GPU: every derived cascade, and attention on tensor cores."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from stream_harness import prepared
from stream_inputs import DOT_PROGRAMS, ROW_PROGRAMS, inputs
from stream_rows import compare, lowered, lse, softmax
from stream_variants import normal

import stack
from stack.errors import UsageError
from stack.ir import Func
from stack.ir.node import walk
from stack.rewrite import Pipeline

torch = pytest.importorskip("torch")
Tensor = Any


def check(program: Callable[..., Any], args: list[Tensor], rtol: float = 1e-5) -> Func:
    func, _ = lowered(program, args)
    with np.errstate(all="ignore"):
        made = func.interpret(
            *((a.float() if a.dtype == torch.bfloat16 else a).numpy() for a in args)
        )
    compare(made, program(*(a.double() if a.is_floating_point() else a for a in args)), rtol)
    return func


@pytest.mark.parametrize("name", [*ROW_PROGRAMS, *DOT_PROGRAMS])
def test_programs(name: str, rng: np.random.Generator) -> None:
    from stream_torch import PROGRAMS

    check(PROGRAMS[name], [torch.from_numpy(a) for a in inputs(name, rng)])


# an element, less than a warp, a prime, several steps of several warps with and without a rest
@pytest.mark.parametrize("size", [2, 31, 127, 4096, 4100, 16411])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_rows_of_every_length(size: int, dtype: str, rng: np.random.Generator) -> None:
    x = normal(rng, 2, size).to(getattr(torch, dtype))
    check(softmax, [x], 1e-5 if dtype == "float32" else 1e-2)


def test_large_offsets_infinities_and_nan(rng: np.random.Generator) -> None:
    x = normal(rng, 7, 3000)
    x[0] += 1e4
    x[1], x[2, :2000], x[3, 1:] = -math.inf, -math.inf, -math.inf
    x[4, 7], x[5, 2900] = math.inf, math.nan
    check(lse, [x])


def test_sums_of_one_product_are_the_operand_of_the_next(rng: np.random.Generator) -> None:
    """Queries, keys and values go through shared memory, what the softmax makes does not."""

    def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return torch.softmax(q @ k.mT / 8, -1) @ v

    args = [normal(rng, 1, 2, 128, 64).to(torch.bfloat16) for _ in range(3)]
    func = check(attention, args, 1e-2)
    nodes = [n for _, n in walk(func.body)]
    products = [n for n in nodes if n.op == "mma_sync"]
    assert [n.args[0].op for n in products] == ["load_matrix", "cast"]
    assert sum(n.op == "alloc" for n in nodes) == 3
    assert {n.attrs["by"] for n in nodes if n.op == "shuffle"} == {1, 2}  # four lanes have a row
    # keys and values: once before the loop, and in each turn those of the next
    assert sum(n.op == "async_copy" for n in nodes) == 4
    assert [n.attrs["pending"] for n in nodes if n.op == "async_wait"] == [2]


def test_unknown_loops_are_named(rng: np.random.Generator) -> None:
    func = prepared(stack.trace(lse, normal(rng, 4, 300)))
    with pytest.raises(UsageError, match="there are: blocks, cpu"):
        Pipeline("stream{loops=waves,min_axis=2}").run(func)
