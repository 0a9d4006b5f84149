"""Streams as kernels of blocks, run by the interpreter against double precision."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from stream_harness import prepared, streamed

import stack
from stack.ir import Func, Node, parse, verify
from stack.ir.node import walk
from stack.rewrite import Pipeline

torch = pytest.importorskip("torch")
Tensor = Any


def lowered(program: Callable[..., Any], args: list[Tensor], balance: float = 0) -> Func:
    """The kernels of a program, verified and printed losslessly."""
    pricing = f"min_axis=2,balance={balance}"
    func, notes = streamed(prepared(stack.trace(program, *args)), pricing)
    assert any(n.op == "stream" for n in func.nodes), notes
    result = Pipeline("fuse,blocks").run(func, verbose=True)
    notes = [note for record in result.records for note in record.notes]
    assert not any("stays as it is" in n for n in notes), notes
    verify(result.func)
    assert parse(str(result.func)) is result.func
    return result.func


def wide(program: Callable[..., Any], args: list[Tensor]) -> list[np.ndarray]:
    """Results in double precision."""
    out = program(*(a.double() if a.is_floating_point() else a for a in args))
    return [o.numpy() for o in (out if isinstance(out, tuple) else (out,))]


def check(
    program: Callable[..., Any], args: list[Tensor], rtol: float = 1e-5, balance: float = 0
) -> Func:
    """The kernels of a program, whose results are near those in double precision."""
    func = lowered(program, args, balance=balance)
    with np.errstate(all="ignore"):
        made = func.interpret(*(array_of(a) for a in args))
    for got, want in zip(
        made if isinstance(made, tuple) else (made,), wide(program, args), strict=True
    ):
        largest = np.max(np.abs(want[np.isfinite(want)]), initial=1e-30)
        np.testing.assert_allclose(
            got.astype(np.float64), want, rtol=rtol, atol=rtol * float(largest)
        )
    return func


def array_of(a: Tensor) -> np.ndarray:
    """Values as the interpreter takes them."""
    return (a.float() if a.dtype == torch.bfloat16 else a).numpy()


def loops(func: Func, kind: str = "serial") -> list[Node]:
    """Loops of all kernels."""
    return [n for _, n in walk(func.body) if n.op == "loop" and n.attrs.get("kind") == kind]


def limited(func: Func) -> int:
    """The number of loops that skip iterations."""
    return sum(bool(n.attrs.get("limited")) for n in loops(func))
