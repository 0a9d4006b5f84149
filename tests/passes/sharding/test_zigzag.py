"""Sequences in zigzag order: the same values, and programs in which the order matters."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pytest

from stack.errors import UsageError
from stack.ir import Builder, Func, parse, verify
from stack.ir.builder import param
from stack.ir.types import tensor
from stack.passes.context_parallel import ContextParallel
from stack.passes.sharding.strategies.zigzag import zigzagged
from stack.rewrite import Pipeline, random_inputs
from stack.run.mesh import simulate

B, T, D = 2, 16, 4


def attention(value: float = -np.inf, batch: int = B) -> Func:
    """Causal attention with positions that are added: a parameter. Its result is a sequence."""
    b = Builder()
    x, where = param("x", tensor("f32", batch, T, D)), param("where", tensor("f32", T, D))
    h = b.add(x, b.broadcast(where, axes=(1, 2), type=x.type))
    s = b.dot(h, h, rule="b q d, b k d -> b q k")
    place = b.iota(axis=0, type=tensor("i64", T))
    rows, columns = (b.broadcast(place, axes=(i,), type=tensor("i64", T, T)) for i in (0, 1))
    seen = b.broadcast(b.ge(rows, columns), axes=(1, 2), type=tensor("bool", batch, T, T))
    s = b.select(seen, s, b.const(value, "f32"))
    top = b.broadcast(b.reduce(s, kind="max", axes=(2,)), axes=(0, 1), type=s.type)
    e = b.exp(b.sub(s, top))
    total = b.broadcast(b.reduce(e, kind="sum", axes=(2,)), axes=(0, 1), type=s.type)
    made = b.dot(b.div(e, total), h, rule="b q k, b k d -> b q d")
    return b.func("f", [x, where], [made, b.reduce(made, kind="sum", axes=(1,))])


def flat() -> Func:
    """Tokens of two sequences one after another, their places in both, and a constant."""
    b = Builder()
    x = param("x", tensor("f32", B, T, D))
    rows = b.reshape(x, type=tensor("f32", B * T, D))
    place = b.cast(b.iota(axis=0, type=tensor("i64", B * T)), type=tensor("f32", B * T))
    weight = b.const(np.arange(T, dtype=np.float32), "f32")
    both = b.mul(rows, b.broadcast(place, axes=(0,), type=rows.type))
    back = b.reshape(both, type=x.type)
    made = b.mul(back, b.broadcast(weight, axes=(1,), type=x.type))
    return b.func("f", [x], [made])


def values(func: Func, arrays: list[np.ndarray]) -> tuple[np.ndarray, ...]:
    """All results of a function."""
    found = func.interpret(*arrays)
    return found if isinstance(found, tuple) else (found,)


@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("make", [attention, flat])
def test_the_program_stays_equal(make: Callable[[], Func], ranks: int) -> None:
    """Also before it is split: parameters are permuted, and results permuted back."""
    func = make()
    made, starts, _ = zigzagged(func, {func.params[0]: 1}, ranks)
    verify(made)
    assert parse(str(made)) is made
    ((moved, dim),) = starts.items()
    arrays = random_inputs(func)
    blocks = np.split(np.arange(T), 2 * ranks)
    order = [i for r in range(ranks) for i in (*blocks[r], *blocks[2 * ranks - 1 - r])]
    given = Func("x", type(func.body)(made.params, [moved]), made.level)
    assert np.array_equal(given.interpret(*arrays), arrays[0].take(order, dim))
    for got, want in zip(values(made, arrays), values(func, arrays), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("after", ["spmd", "spmd,ring"])
@pytest.mark.parametrize("value", [-np.inf, -1e9])
@pytest.mark.parametrize("ranks", [2, 4])
def test_ranks_compute_the_same(ranks: int, value: float, after: str) -> None:
    func = attention(value)
    split = ContextParallel(f"cp={ranks}", batch=("x",), order="zigzag")
    placed = Pipeline([split, *Pipeline("propagate,reshard").passes]).run(func).func
    local = Pipeline(after).run(placed).func
    arrays = random_inputs(func)
    found = simulate(placed, local, arrays, filler=77)
    assert ("permute" in found.counts) == ("ring" in after)
    for got, want in zip(found.results, func.interpret(*arrays), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


ORDERED = {
    "a running sum": '%y = scan(%x) {axis=0, kind="sum", reverse=false} : f32[16]',
    "a sort": "%s = sort(%x) {axis=0, descending=false, num_keys=1} : (f32[16])\n"
    "  %y = item(%s) {index=0} : f32[16]",
    "a shift": "%y = slice(%x) {start=[0], limit=[15], step=[1]} : f32[15]",
    "padding": "%y = pad(%x, 0.0:f32) {low=[1], high=[0], interior=[0]} : f32[17]",
    "the reverse": "%y = reverse(%x) {axes=[0]} : f32[16]",
    "the first maximum": '%y = argreduce(%x) {axis=0, kind="max"} : i64[]',
    "windows": "%y = reshape(%x) : f32[4, 4]",
    "two sequences in one": "%y = concat(%x, %x) {axis=0} : f32[32]",
    "a branch": "%c = eq(1.0:f32, 1.0:f32) : bool[]\n"
    "  %y = cond(%c, %x) : f32[16] {(%a: f32[16]) return %a} {(%a: f32[16]) return %a}",
    "a lookup": '%y = gather(%x, %i) {rule="v!, n -> n"} : f32[3]',
    "an addition at data": '%y = scatter(%x, %i, %u) {kind="add", rule="v!, n, n -> v!"} : f32[16]',
}


@pytest.mark.parametrize("name", ORDERED)
def test_what_depends_on_the_order(name: str) -> None:
    line = ORDERED[name]
    result = line.rpartition(" : ")[2].partition(" {")[0]
    func = parse(
        f"func @f(%x: f32[16], %i: i64[3], %u: f32[3]) -> ({result}) at tensor {{\n"
        f"  {line}\n  return %y\n}}"
    )
    node = re.search(r"%\w+ = \w+(?=\([^)]*%x)", line)
    assert node is not None, "a node that reads the sequence"
    with pytest.raises(UsageError, match=f"{node[0]}: .*; keep the sequence in order"):
        zigzagged(func, {func.params[0]: 0}, 2)


def test_what_only_passes_the_sequence_by() -> None:
    """The same ops along another dim."""
    func = parse(
        """func @f(%x: f32[16, 8], %i: i64[3]) -> (f32[16, 7], f32[16, 8], f32[16, 3]) at tensor {
  %a = slice(%x) {start=[0, 0], limit=[16, 7], step=[1, 1]} : f32[16, 7]
  %b = scan(%x) {axis=1, kind="sum", reverse=false} : f32[16, 8]
  %c = gather(%x, %i) {rule="t v!, n -> t n"} : f32[16, 3]
  return %a, %b, %c
}"""
    )
    made, *_ = zigzagged(func, {func.params[0]: 0}, 2)
    arrays = random_inputs(func)
    for got, want in zip(made.interpret(*arrays), func.interpret(*arrays), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-6)


@pytest.mark.parametrize(
    ("split", "told"),
    [
        (ContextParallel("cp=3", batch=("x",), order="zigzag"), "16 tokens do not divide into 6"),
        (ContextParallel("cp=2", batch=("x",), order="striped"), "sequence or zigzag, not 'strip"),
        (
            ContextParallel("cp=2", batch=("x",), by="heads", order="zigzag"),
            "heads: order is sequence, not 'zigzag'",
        ),
        (
            ContextParallel("cp=2", batch=("x", "where"), dim=1, order="zigzag"),
            "different lengths: \\[4, 16\\]",
        ),
    ],
)
def test_what_cannot_be(split: ContextParallel, told: str) -> None:
    with pytest.raises(UsageError, match=told):
        Pipeline([split]).run(attention())
