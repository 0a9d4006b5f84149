"""A function of 5,000 nodes: every step well under a second of processor time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from stack.ir import Builder, Func, Node, param, parse, rebuild, tensor, verify


def timed(step: Callable[[], Any]) -> tuple[Any, float]:
    start = time.process_time()
    result = step()
    return result, time.process_time() - start


def large(count: int) -> Func:
    b = Builder()
    b.loc = ("model.py:1 layers.0", "model.py:22 forward")
    x, w = param("x", tensor("f32", 8, 64)), param("w", tensor("f32", 64, 64))
    value = x
    for i in range(count // 10):
        value = b.exp(b.mul(b.add(b.dot(value, w, rule="a b, b c -> a c"), x), float(i)))
        top = b.reduce(value, kind="max", axes=(1,))
        value = b.sub(value, b.broadcast(top, axes=(0,), type=x.type))
        value = b.reshape(value, type=tensor("f32", 8, 8, 8))
        value = b.reshape(b.transpose(value, perm=(0, 2, 1)), type=x.type)
    return b.func("large", [x, w], [value])


def test_large_functions() -> None:
    func, build = timed(lambda: large(5000))
    text, printing = timed(lambda: str(func))
    again, parsing = timed(lambda: parse(text))
    _, verifying = timed(lambda: verify(func))
    same, rebuilding = timed(lambda: rebuild(func))
    assert again is func
    assert same is func
    assert len(func.nodes) >= 5000
    assert max(build, printing, parsing, verifying, rebuilding) < 1


def test_nodes_are_cheap() -> None:
    x = param("x", tensor("f32", 8))

    def make() -> list[Node]:
        attrs = [{"axis": i, "kind": "sum", "reverse": False} for i in range(20_000)]
        return [Node("scan", (x,), a, x.type) for a in attrs]

    _, spent = timed(make)
    assert spent / 20_000 < 40e-6  # 4 us on an idle machine
