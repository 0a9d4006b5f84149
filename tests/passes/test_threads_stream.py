"""Streams on the threads of a GPU: every derived cascade, and attention on tensor cores."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from stream_harness import prepared
from stream_inputs import DOT_PROGRAMS, ROW_PROGRAMS, inputs
from stream_rows import compare, lowered, lse, softmax, two_products
from stream_variants import normal

import stack
from stack.errors import UsageError
from stack.ir import Func, parse
from stack.ir.node import walk
from stack.ir.warp_ops import group_operands
from stack.rewrite import Pipeline

torch = pytest.importorskip("torch")
Tensor = Any


def check(
    program: Callable[..., Any], args: list[Tensor], rtol: float = 1e-5, target: str = "sm_90"
) -> Func:
    func, _ = lowered(program, args, target)
    with np.errstate(all="ignore"):
        made = func.interpret(
            *((a.float() if a.dtype == torch.bfloat16 else a).numpy() for a in args)
        )
    compare(made, program(*(a.double() if a.is_floating_point() else a for a in args)), rtol)
    return func


@pytest.mark.every(2)
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


@pytest.mark.parametrize("target", ["sm_80", "sm_90"])
def test_sums_of_one_product_are_the_operand_of_the_next(
    target: str, rng: np.random.Generator
) -> None:
    """Operands and the result go through shared memory, what the softmax makes does not."""

    def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return torch.softmax(q @ k.mT / 8, -1) @ v

    args = [normal(rng, 1, 2, 512, 64).to(torch.bfloat16) for _ in range(3)]
    func = check(attention, args, 1e-2, target)
    nodes = [n for _, n in walk(func.body)]
    if target == "sm_80":
        products = [n for n in nodes if n.op == "mma_sync"]
        assert [n.args[0].op for n in products] == ["load_matrix", "cast"]
    else:
        products = [n for n in nodes if n.op == "warpgroup_mma"]
        assert [len(group_operands(n)[0]) for n in products] == [3, 1]
        assert group_operands(products[1])[0][0].op == "cast"
    assert sum(n.op == "alloc" for n in nodes) == 4  # the result leaves through the fourth
    assert {n.attrs["by"] for n in nodes if n.op == "shuffle"} == {1, 2}  # four lanes have a row
    # keys and values: of two iterations before the loop; each iteration copies those two ahead
    assert sum(n.op == "async_copy" for n in nodes) == 6
    assert [n.attrs["pending"] for n in nodes if n.op == "async_wait"] == [2, 2]


# of the axis that the norm sums over: a step, two, three, several with a rest
@pytest.mark.every(3)
@pytest.mark.parametrize("width", [32, 64, 96, 150])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_two_products_around_a_norm(width: int, dtype: str, rng: np.random.Generator) -> None:
    """Rows and columns of the last weight were columns apart, and had the same threads each."""
    shapes = ((96, 64), (64, width), (width,), (width,), (32, width))
    args = [normal(rng, *s).to(getattr(torch, dtype)) for s in shapes]
    check(two_products, args, 1e-5 if dtype == "float32" else 3e-2)


LOOP = """
    %sum{n} = loop(%{start}) {{kind="serial"}} : f32<32x32> {{(%k{n} < {steps}, %s{n}: f32<32x32>)
      %at{n} = mul(%k{n}, 16:i64) : i64[]
      %w{n} = load(%p1, %at{n}, 0:i64) : f32<16x32>
      %x{n} = load(%p0, 0:i64, %at{n}) : f32<32x16>
      %d{n} = dot(%x{n}, %w{n}) {{rule="m k, k n -> m n"}} : f32<32x32>
      %a{n} = add(%s{n}, %d{n}) : f32<32x32>
      return %a{n}
    }}"""


@pytest.mark.parametrize("steps", [1, 2, 3])
@pytest.mark.parametrize("place", ["after", "inside"])
def test_loops_that_copy_ahead(steps: int, place: str, rng: np.random.Generator) -> None:
    """Each run of a loop begins with its own copies, and not with what the one before left."""

    def loop(n: int, start: str) -> str:
        return LOOP.format(n=n, start=start, steps=steps)

    inside = f"""
    %sum1 = loop(%zero) {{kind="serial"}} : f32<32x32> {{(%turn < 2, %t: f32<32x32>){loop(0, "t")}
      return %sum0
    }}"""
    body = inside if place == "inside" else loop(0, "zero") + loop(1, "sum0")
    depth = 16 * steps
    text = f"""
func @main(%x: f32[32, {depth}], %w: f32[{depth}, 32]) -> (f32[32, 32]) at tensor {{
  %k = kernel(%x, %w) {{level="tile", name="k", warps=4}} : f32[32, 32]
  {{(%p0: f32[32, {depth}] in global, %p1: f32[{depth}, 32] in global, %o0: f32[32, 32] in global)
    %zero = broadcast(0.0:f32) {{axes=[]}} : f32<32x32>{body}
    %s = store(%o0, %sum1, 0:i64, 0:i64) : f32[32, 32] in global
    return %s
  }}
  return %k
}}
"""
    x, w = (rng.normal(size=s).astype(np.float32) for s in ((32, depth), (depth, 32)))
    made = Pipeline("distribute_gpu").run(parse(text)).func
    assert any(n.op == "async_copy" for _, n in walk(made.body)) == (steps > 1)
    want = 2 * (x.astype(np.float64) @ w)
    np.testing.assert_allclose(made.interpret(x, w), want, rtol=1e-5, atol=1e-5)


def test_unknown_loops_are_named(rng: np.random.Generator) -> None:
    func = prepared(stack.trace(lse, normal(rng, 4, 300)))
    with pytest.raises(UsageError, match="there are: blocks, cpu"):
        Pipeline("stream{loops=waves,min_axis=2}").run(func)
