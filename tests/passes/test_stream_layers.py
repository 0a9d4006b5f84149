"""Streams in models of many layers: what is in memory anyway is not looked behind."""

from __future__ import annotations

import pytest

from stack import Pipeline
from stack.ir.builder import Builder, param
from stack.ir.func import Func
from stack.ir.node import Node
from stack.ir.types import F32, TensorType
from stack.passes.streaming.graph import Graph
from stack.passes.streaming.region import Region
from stack.passes.streaming.terms import TermValue


def residual(layers: int, again: bool = False) -> Func:
    """`x = x + norm(x) @ w`, so many times: each norm may stream, all of them see the first x.

    With `again` each norm is asked for a second time at the end, as a backward pass does.
    """
    b = Builder()
    row = TensorType(F32, (48, 64))
    first = param("x", row)
    weights = [param(f"w{i}", TensorType(F32, (64, 64))) for i in range(layers)]
    x = first
    norms: list[Node] = []
    for w in weights:
        total = b.reduce(b.mul(x, x), kind="sum", axes=(1,))
        scale = b.rsqrt(b.add(total, 1e-6))
        normed = b.mul(x, b.broadcast(scale, axes=(0,), type=row))
        x = b.add(x, b.dot(normed, w, rule="m k, k n -> m n"))
        norms.append(normed)
    results = [b.dot(n, x, rule="k m, k n -> m n") for n in reversed(norms)] if again else [x]
    return b.func("net", [first, *weights], results)


def looked_at(layers: int, again: bool, monkeypatch: pytest.MonkeyPatch) -> int:
    """The number of values whose operands the pass has visited."""
    count = 0
    ask = Region.operand_values

    def counted(self: Region, value: TermValue) -> list[TermValue]:
        nonlocal count
        count += 1
        return ask(self, value)

    with monkeypatch.context() as patch:
        patch.setattr(Region, "operand_values", counted)
        Pipeline("stream").run(residual(layers, again))
    return count


@pytest.mark.parametrize("again", [False, True])
def test_work_grows_with_layers_not_with_their_square(
    again: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    few, many, more = (looked_at(n, again, monkeypatch) for n in (8, 16, 24))
    assert few > 0
    assert more - many == many - few


def test_what_a_reduction_runs_over_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    count = 0
    walk = Region._walk

    def counted(self: Region, start: TermValue, main: bool, dots: bool) -> None:
        nonlocal count
        count += 1
        walk(self, start, main, dots)

    monkeypatch.setattr(Region, "_walk", counted)
    none: frozenset[Node] = frozenset()
    block = residual(4).body
    graph = Graph(block)
    last = next(n for n in reversed(graph.nodes) if n.op == "reduce")
    passed = Region(graph, 64, none, none).passed(last)
    assert count == 1
    assert (block.params[0], 1) in passed
    assert Region(Graph(block, graph.probes), 64, none, none).passed(last) == passed
    assert count == 1, "also in a graph of the next step"
    sums = [n for n in graph.nodes if n.op == "add" and n.shape == (48, 64)]
    fewer = Region(graph, 64, none, frozenset(sums[1:2])).passed(last)
    assert count == 2, "other values are in memory"
    assert fewer < passed
    assert (block.params[0], 1) not in fewer
    assert Region(Graph(block), 64, none, none).passed(last) == passed
    assert count == 3, "a graph of another block"


def test_a_dot_joined_with_itself_does_not_wait() -> None:
    """`softmax(s + tanh(s)) @ v`: no dot lies between `s` and where it is read a second time."""
    b = Builder()
    table, scores = TensorType(F32, (96, 32)), TensorType(F32, (96, 96))
    q, k, v = (param(name, table) for name in "qkv")
    s = b.dot(q, k, rule="m k, n k -> m n")
    s = b.add(s, b.tanh(s))
    top = b.reduce(s, kind="max", axes=(1,))
    e = b.exp(b.sub(s, b.broadcast(top, axes=(0,), type=scores)))
    total = b.reduce(e, kind="sum", axes=(1,))
    out = b.div(b.dot(e, v, rule="m k, k n -> m n"), b.broadcast(total, axes=(0,), type=table))
    made = Pipeline("stream").run(b.func("net", [q, k, v], [out])).func
    assert "dot" not in {n.op for n in made.body.nodes}


def test_states_come_back_by_element_and_by_reductions_over_the_same_axis() -> None:
    b = Builder()
    table, scores = TensorType(F32, (96, 32)), TensorType(F32, (96, 96))
    q, k, w = param("q", table), param("k", table), param("w", TensorType(F32, (32, 32)))
    s = b.dot(q, k, rule="m k, n k -> m n")
    top = b.reduce(s, kind="max", axes=(1,))
    e = b.exp(b.sub(s, b.broadcast(top, axes=(0,), type=scores)))
    total = b.reduce(e, kind="sum", axes=(1,))
    out = b.dot(e, k, rule="m n, n k -> m k")
    columns = b.reduce(e, kind="sum", axes=(0,))  # another axis, of the same size
    behind = b.dot(out, w, rule="m k, k n -> m n")
    again = b.dot(behind, k, rule="m k, n k -> m n")
    last = b.reduce(again, kind="max", axes=(1,))
    graph = Graph(b.func("net", [q, k, w], [total, columns, last]).body)
    along = graph.after([top], 96)
    assert all(n in along for n in (top, e, total, out, columns))
    assert not any(n in along for n in (s, behind, again, last))
    assert last in graph.after([top])


def test_a_reduction_in_which_no_state_comes_back_is_not_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Attention in layers, and its gradient: a stream of a layer needs that layer's alone."""
    b = Builder()
    row, table = TensorType(F32, (96, 32)), TensorType(F32, (96, 96))
    x = first = param("x", row)
    kept: list[tuple[Node, Node]] = []
    for _ in range(4):
        s = b.dot(x, x, rule="m k, n k -> m n")
        top = b.reduce(s, kind="max", axes=(1,))
        e = b.exp(b.sub(s, b.broadcast(top, axes=(0,), type=table)))
        total = b.reduce(e, kind="sum", axes=(1,))
        p = b.div(e, b.broadcast(total, axes=(0,), type=table))
        kept.append((p, x))
        x = b.add(x, b.dot(p, x, rule="m n, n k -> m k"))
    for p, layer in reversed(kept):
        d = b.dot(x, layer, rule="m k, n k -> m n")
        total = b.reduce(b.mul(d, p), kind="sum", axes=(1,))
        d = b.mul(p, b.sub(d, b.broadcast(total, axes=(0,), type=table)))
        x = b.add(x, b.dot(d, layer, rule="m n, n k -> m k"))
    asked: list[Node] = []
    add = Region.add

    def noted(self: Region, reduction: Node) -> None:
        asked.append(reduction)
        add(self, reduction)

    monkeypatch.setattr(Region, "add", noted)
    Pipeline("stream").run(b.func("net", [first], [x]))
    # 44 if each of a layer's last dots asks all reductions of all layers
    assert len(asked) == 35
