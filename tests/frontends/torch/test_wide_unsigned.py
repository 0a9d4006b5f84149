"""Torch holds u64 in i64: what depends on the top bit means what it means in NumPy."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from test_space import check, one

from stack.ir.builder import Builder
from stack.ir.elementwise_ops import BINARY, COMPARE, UNARY
from stack.ir.types import F64, tensor

TOP = 1 << 63
EDGES = (0, 1, 2, 3, 7, 64, TOP - 1, TOP, TOP + 1, TOP + 5, (1 << 64) - 2, (1 << 64) - 1)
PAIRS = np.array(list(itertools.product(EDGES, EDGES)), np.uint64)
LINES = np.random.default_rng(0).choice(np.array(EDGES, np.uint64), (4, 9))


@pytest.mark.parametrize("name", [n for n, (kinds, *_) in UNARY.items() if "u" in kinds])
def test_unary(name: str) -> None:
    check(one(lambda b, x: b.op(name, [x]), tensor("u64", 12)), np.array(EDGES, np.uint64))


@pytest.mark.parametrize("name", [*(n for n, (k, *_) in BINARY.items() if "u" in k), *COMPARE])
def test_binary(name: str) -> None:
    """All pairs of edges: equal values, 1 and 0 as divisors among them."""
    type_ = tensor("u64", len(PAIRS))
    check(one(lambda b, x, y: b.op(name, [x, y]), type_, type_), PAIRS[:, 0], PAIRS[:, 1])


@pytest.mark.each
@pytest.mark.parametrize("name", ["div", "rem"])
@pytest.mark.parametrize("by", EDGES)
def test_division_by_a_constant(name: str, by: int) -> None:
    def build(b: Builder, x: Any) -> Any:
        return b.op(name, [x, b.const(np.uint64(by))])

    check(one(build, tensor("u64", 12)), np.array(EDGES, np.uint64))


Build = Callable[[Builder, Any], Any]
LINE_OPS: dict[str, Build] = {
    **{
        f"reduce {kind}": lambda b, x, k=kind: b.reduce(x, kind=k, axes=(1,))
        for kind in ("sum", "prod", "max", "min", "and", "or")
    },
    **{
        f"scan {kind}": lambda b, x, k=kind: b.scan(x, kind=k, axis=1, reverse=True)
        for kind in ("sum", "prod", "max", "min")
    },
    **{
        f"arg{kind}": lambda b, x, k=kind: b.argreduce(x, kind=k, axis=1, type=tensor("i32", 4))
        for kind in ("max", "min")
    },
    "sort": lambda b, x: b.item(b.sort(x, x, axis=1, num_keys=2, descending=False), index=1),
    "sort down": lambda b, x: b.item(b.sort(x, axis=1, num_keys=1, descending=True), index=0),
    "dot": lambda b, x: b.dot(x, x, rule="a k, b k -> a b"),
    **{f"to {t}": lambda b, x, t=t: b.cast(x, type=tensor(t, 4, 9))
       for t in ("bool", "i8", "u8", "u32", "i64", "f32", "f64", "f16", "bf16")},
}  # fmt: skip


@pytest.mark.every(2)
@pytest.mark.parametrize("name", LINE_OPS)
def test_lines(name: str) -> None:
    check(one(LINE_OPS[name], tensor("u64", 4, 9)), LINES)


@pytest.mark.parametrize("kind", ["sum", "prod", "max", "min", "and", "or"])
def test_nothing_reduced(kind: str) -> None:
    empty = np.zeros((4, 0), np.uint64)
    check(one(lambda b, x: b.reduce(x, kind=kind, axes=(1,)), tensor("u64", 4, 0)), empty)


@pytest.mark.parametrize("kind", ["add", "mul", "max", "min", "set"])
def test_scatter(kind: str) -> None:
    def build(b: Builder, x: Any, y: Any) -> Any:
        index = b.const(np.array([3, 1, 0] if kind == "set" else [3, 1, 3], np.int64))
        return b.scatter(x, index, y, rule="a! b, n, n b -> a! b", kind=kind)

    check(one(build, tensor("u64", 4, 9), tensor("u64", 3, 9)), LINES, LINES[1:])


@pytest.mark.parametrize("source", ["f64", "f32"])
def test_floats_past_the_top_bit(source: str) -> None:
    x = np.array([0.5, 7.9, 2.0**62, 2.0**63, 2.0**63 + 2.0**40, 1.8e19], F64.numpy)
    build: Build = lambda b, v: b.cast(v, type=tensor("u64", 6))
    check(one(build, tensor(source, 6)), x.astype(np.dtype("f4" if source == "f32" else "f8")))
