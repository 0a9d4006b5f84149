"""The op `stream`: its meaning, its checks, and running it tile by tile."""

from __future__ import annotations

import numpy as np
import pytest

from stack.errors import RuleError
from stack.ir import Block, Builder, Func, Node, make, param, parse, tensor, verify
from stack.ir.cost import cost
from stack.ir.dim import symbol
from stack.ir.streaming import Tiled, interpret_in_tiles
from stack.rewrite import Pipeline

b = Builder()


def pooled(rows: int, k: int, width: int) -> Node:
    """sum_k exp(s - m) v / sum_k exp(s - m) with s = x @ x.T, of which x is read in two ways."""
    x, v = param("x", tensor("f32", rows, 5)), param("v", tensor("f32", k, width))
    y = param("y", tensor("f32", k, 5)) if rows != k else x
    s = b.dot(x, y, rule="m d, k d -> m k")
    m = b.reduce(s, kind="max", axes=(1,))
    e = b.exp(b.sub(s, b.broadcast(m, axes=(0,), type=s.type)))
    total = b.reduce(e, kind="sum", axes=(1,))
    a = b.dot(e, v, rule="m k, k n -> m n")
    params = tuple(dict.fromkeys((x, y, v)))
    old = [param(f"old{i}", n.type) for i, n in enumerate((m, total, a))]
    new = [param(f"new{i}", n.type) for i, n in enumerate((m, total, a))]
    factor = b.exp(b.sub(old[0], new[0]))
    wide = b.broadcast(factor, axes=(0,), type=a.type)
    correct = Block([*old, *new], [old[0], b.mul(old[1], factor), b.mul(old[2], wide)])
    divisor = b.broadcast(old[1], axes=(0,), type=a.type)
    finish = Block([*old, *params], [b.div(old[2], divisor), old[0]])
    blocks = (Block(params, (m, total, a)), correct, finish)
    return b.stream(*params, name="pooled", blocks=blocks)


def reference(node: Node, arrays: list[np.ndarray]) -> np.ndarray:
    wide = [a.astype(np.float64) for a in arrays]
    s = wide[0] @ wide[-2].T
    e = np.exp(s - s.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True) @ wide[-1]


@pytest.mark.parametrize("rows, k", [(4, 23), (13, 13), (1, 1), (3, 2)])
def test_tiles_and_splits_give_the_plain_meaning(
    rows: int, k: int, rng: np.random.Generator
) -> None:
    node = pooled(rows, k, 3)
    arrays = [rng.standard_normal(a.shape).astype(np.float32) for a in node.args]
    want = reference(node, arrays)
    results = [make("item", (node,), {"index": i}) for i in range(2)]
    plain = Func("f", Block(node.args, results)).interpret(*arrays)
    np.testing.assert_allclose(plain[0], want, rtol=1e-5, atol=1e-6)
    for tile, splits in [(1, 1), (7, 1), (k, 1), (2, 3), (5, k)]:
        out, m = interpret_in_tiles(node, arrays, tile, splits)
        np.testing.assert_allclose(out, want, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(m, plain[1], rtol=1e-5)


def test_an_argument_is_viewed_along_the_axis_and_across_it() -> None:
    node = pooled(13, 13, 3)
    x, v = node.blocks[0].params
    assert set(Tiled(node, 0, 4).views) == {(x, None), (x, 0), (v, 0)}
    assert {r.shape for r in Tiled(node, 0, 4).partials[0].params} >= {(4, 5), (13, 5)}


def test_a_position_counts_from_the_start_of_the_axis(rng: np.random.Generator) -> None:
    x = param("x", tensor("f32", 9))
    kept = b.ge(b.iota(axis=0, type=tensor("i64", 9)), 4)
    s = b.reduce(b.select(kept, x, 0.0), kind="sum", axes=(0,))
    old, new = param("old", s.type), param("new", s.type)
    blocks = (Block((x,), (s,)), Block((old, new), (old,)), Block((old, x), (old,)))
    node = b.stream(x, name="tail", blocks=blocks)
    value = rng.standard_normal(9).astype(np.float32)
    for tile in (1, 2, 9):
        (out,) = interpret_in_tiles(node, [value], tile)
        np.testing.assert_allclose(out, value[4:].sum(), rtol=1e-5)


def test_text_cost_and_unfuse() -> None:
    node = pooled(4, 23, 3)
    func = Func("f", Block(node.args, [make("item", (node,), {"index": 0})]))
    verify(func)
    assert parse(str(func)) is func
    operands = 4 * (4 * 5 + 23 * 5 + 23 * 3)
    assert cost(node).read == operands
    assert cost(node).written == 4 * (4 * 3 + 4)
    assert cost(node).flops > 2 * 4 * 23 * (5 + 3)
    plain = Pipeline("unfuse").run(func, check=True).func
    assert all(n.op != "stream" for n in plain.nodes)


def test_passes_leave_a_stream_alone() -> None:
    node = pooled(4, 23, 3)
    func = Func("f", Block(node.args, [make("item", (node,), {"index": 0})]))
    result = Pipeline("canonicalize,fuse").run(func, check=True).func
    assert node in result.nodes


def test_a_symbolic_axis_is_refused_when_run() -> None:
    n = symbol("n")
    x = param("x", tensor("f32", n))
    s = b.reduce(x, kind="sum", axes=(0,))
    old, new = param("old", s.type), param("new", s.type)
    blocks = (Block((x,), (s,)), Block((old, new), (old,)), Block((old, x), (old,)))
    with pytest.raises(TypeError, match="symbolic size n"):
        interpret_in_tiles(b.stream(x, name="s", blocks=blocks), [np.zeros(3, "f4")], 1)


def test_what_is_no_stream_is_refused() -> None:
    x, y = param("x", tensor("f32", 4, 6)), param("y", tensor("f32", 4, 5))
    rows = b.reduce(x, kind="sum", axes=(1,))
    old, new = param("old", rows.type), param("new", rows.type)
    keep, end = Block((old, new), (old,)), Block((old, x), (old,))
    with pytest.raises(RuleError, match="three blocks"):
        b.stream(x, name="s", blocks=(Block((x,), (rows,)), keep))
    whole = b.reduce(x, kind="sum", axes=(0, 1))
    with pytest.raises(RuleError, match="over one axis"):
        b.stream(x, name="s", blocks=(Block((x,), (whole,)), keep, end))
    with pytest.raises(RuleError, match="block `correct` takes"):
        b.stream(x, name="s", blocks=(Block((x,), (rows,)), Block((old,), (old,)), end))
    other = b.reduce(y, kind="sum", axes=(1,))
    olds = [param(f"a{i}", rows.type) for i in range(4)]
    both = Block((x, y), (rows, other))
    with pytest.raises(RuleError, match="different sizes"):
        finish = Block([*olds[:2], x, y], olds[:1])
        b.stream(x, y, name="s", blocks=(both, Block(olds, olds[:2]), finish))
