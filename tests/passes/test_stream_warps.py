"""Streams without a product on a GPU: values in any order of threads, the text run on a CPU."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from gpu_cases import backwards
from stream_harness import prepared, streamed
from stream_inputs import ROW_PROGRAMS, inputs
from stream_rows import compare, lowered, lse, softmax
from stream_variants import normal

import stack
from stack.errors import UsageError
from stack.ir import Func
from stack.ir.node import walk
from stack.passes.gpu_loops.stream import STEP_BYTES, WarpStream
from stack.passes.tiling.frame import CannotTile
from stack.rewrite import Pipeline

torch = pytest.importorskip("torch")
Tensor = Any
WITH_PRODUCTS = ("softmin", "standardized")


def check(program: Callable[..., Any], args: list[Tensor], rtol: float = 1e-5) -> Func:
    func, _ = lowered(program, args)
    with np.errstate(all="ignore"):
        made = func.interpret(
            *((a.float() if a.dtype == torch.bfloat16 else a).numpy() for a in args)
        )
    compare(made, program(*(a.double() if a.is_floating_point() else a for a in args)), rtol)
    return func


@pytest.mark.parametrize("name", [n for n in ROW_PROGRAMS if n not in WITH_PRODUCTS])
def test_programs(name: str, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    from stream_torch import PROGRAMS

    args = [torch.from_numpy(a) for a in inputs(name, rng)]
    check(PROGRAMS[name], args)
    backwards(monkeypatch)
    check(PROGRAMS[name], args)


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


def test_a_row_is_read_once_and_merged_by_shuffles_and_shared_memory(
    rng: np.random.Generator,
) -> None:
    _, (kernel,) = lowered(lse, [normal(rng, 3, 16384)])
    nodes = [n for _, n in walk(kernel.blocks[0])]
    serial = [n for n in nodes if n.op == "loop" and n.attrs["kind"] == "serial"]
    assert len(serial) == 1
    loads = [n for n in nodes if n.op == "load" and n.args[0].tensor.space == "global"]
    assert len(loads) == STEP_BYTES // 16  # vectors of one step
    assert sum(n.op == "loop" and n.attrs["kind"] == "warp" for n in nodes) == 2


def test_what_has_a_product_is_left(rng: np.random.Generator) -> None:
    def pooled(x: Tensor, v: Tensor) -> Tensor:
        return torch.softmax(x, -1) @ v

    func = prepared(stack.trace(pooled, normal(rng, 4, 300), normal(rng, 300, 6)))
    result = Pipeline("stream{loops=warps,min_axis=2}").run(func, verbose=True)
    notes = [str(note) for record in result.records for note in record.notes]
    assert any("is not streamed: it has a product" in n for n in notes), notes
    (stream,) = (n for n in streamed(func)[0].nodes if n.op == "stream")
    with pytest.raises(CannotTile, match="product"):
        WarpStream(stream)


@pytest.mark.parametrize(("size", "changed"), [(32768, False), (36864, True)])
def test_rows_that_stay_in_registers_are_not_walked_twice(
    size: int, changed: bool, rng: np.random.Generator
) -> None:
    for program, expected in ((softmax, changed), (lse, True)):
        func = prepared(stack.trace(program, normal(rng, 2, size)))
        made = Pipeline("stream{loops=warps}").run(func).func
        assert (made is not func) == expected


def test_unknown_loops_are_named(rng: np.random.Generator) -> None:
    func = prepared(stack.trace(lse, normal(rng, 4, 300)))
    with pytest.raises(UsageError, match="there are: blocks, cpu, warps"):
        Pipeline("stream{loops=waves,min_axis=2}").run(func)
