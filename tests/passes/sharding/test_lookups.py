"""Tables of which each rank has a part: who has an element reads or writes it."""

from __future__ import annotations

import numpy as np
import pytest
from sharded_cases import run

from stack.ir import parse
from stack.rewrite import Pipeline

FUNC = """func @f(%table: DTYPE[99, 6], %x: INT[4, 3]) -> (DTYPE[4, 3, 6]) at tensor {
  %y = gather(%table, %x) {rule="v! d, b s -> b s d"} : DTYPE[4, 3, 6]
  return %y
}"""
LABELS = """func @f(%scores: f32[4, 10], %y: i64[4]) -> (f32[4]) at tensor {
  %p = gather(%scores, %y) {rule="b v!, b -> b"} : f32[4]
  return %p
}"""


@pytest.mark.parametrize(("dtype", "index"), [("f32", "i64"), ("i32", "u8")])
def test_no_rank_holds_the_table(dtype: str, index: str) -> None:
    """99 rows over 4 ranks: the last one has 24."""
    func = parse(FUNC.replace("DTYPE", dtype).replace("INT", index))
    case = Pipeline('annotate{mesh="tp=4", shard=["table: tp"]}').run(func).func
    rng = np.random.default_rng(0)
    table = rng.integers(-9, 9, (99, 6)).astype(func.params[0].dtype.numpy)
    table[98] = 7
    x = rng.integers(20, 99, (4, 3)).astype(func.params[1].dtype.numpy)
    found = run(case, [table, x])
    assert np.array_equal(found.results[0], table[x])
    assert found.counts == {"all_reduce": 1}


def test_what_is_not_read_may_be_anything() -> None:
    """The score of the label is read; the other scores of a row are not summed."""
    case = Pipeline('annotate{mesh="tp=2", shard=["scores: -, tp"]}').run(parse(LABELS)).func
    scores = np.full((4, 10), -np.inf, np.float32)
    y = np.array([0, 4, 5, 9])
    scores[range(4), y] = [1, 2, 3, 4]
    found = run(case, [scores, y])
    assert np.array_equal(found.results[0], [1, 2, 3, 4])
    assert found.counts == {"all_reduce": 1}


WRITES = """func @f(%table: f32[10, 6], %x: INT[5], %u: f32[5, 6]) -> (f32[10, 6]) at tensor {
  %y = scatter(%table, %x, %u) {ATTRS, rule="v! d, n, n d -> v! d"} : f32[10, 6]
  return %y
}"""


SENT = {"add": "all_reduce", "set": "all_gather", "max": "all_gather"}


@pytest.mark.parametrize("kind", SENT)
@pytest.mark.parametrize("index", ["i64", "u8"])
def test_each_rank_writes_its_own_rows(kind: str, index: str) -> None:
    """10 rows over 4 ranks: the last has one. Updates that are split are gathered, or summed."""
    func = parse(WRITES.replace("INT", index).replace("ATTRS", f'kind="{kind}"'))
    rng = np.random.default_rng(0)
    table, u = (rng.integers(-9, 9, (n, 6)).astype(np.float32) for n in (10, 5))
    x = np.array([9, 3, 0, 5, 6] if kind == "set" else [9, 3, 3, 0, 9]).astype(
        index.replace("u8", "uint8").replace("i64", "int64")
    )
    want = func.interpret(table, x, u)
    for shard, counts in (
        (["table: tp", "return: tp"], {}),
        (["table: tp", "u: dp", "return: tp"], {SENT[kind]: 1}),
    ):
        placed = str(shard).replace("'", '"')
        case = Pipeline(f'annotate{{mesh="dp=2, tp=4", shard={placed}}}').run(func).func
        found = run(case, [table, x, u])
        assert np.array_equal(found.results[0], want)
        assert found.counts == counts


@pytest.mark.parametrize("index", ["i64", "u8"])
def test_parts_of_the_updates_are_summed(index: str) -> None:
    """Five updates of two rows over two ranks: what is added to is added once."""
    func = parse(WRITES.replace("INT", index).replace("ATTRS", 'kind="add"').replace("10,", "2,"))
    shard = '["x: dp", "u: dp", "table: -, tp", "return: -, tp"]'
    case = Pipeline(f'annotate{{mesh="dp=2, tp=2", shard={shard}}}').run(func).func
    rng = np.random.default_rng(0)
    table, u = (rng.integers(-9, 9, (n, 6)).astype(np.float32) for n in (2, 5))
    x = np.array([1, 0, 1, 1, 0]).astype(index.replace("u8", "uint8").replace("i64", "int64"))
    found = run(case, [table, x, u])
    assert np.array_equal(found.results[0], func.interpret(table, x, u))
    assert found.counts == {"all_reduce": 1}


def test_updates_out_of_range_stay_out() -> None:
    func = parse(WRITES.replace("INT", "i64").replace("ATTRS", 'drop=true, kind="add"'))
    case = Pipeline('annotate{mesh="tp=4", shard=["table: tp", "return: tp"]}').run(func).func
    table, u = np.zeros((10, 6), np.float32), np.ones((5, 6), np.float32)
    x = np.array([-1, 10, 11, 9, 3])  # the last rank has rows 9 to 11, of which one exists
    found = run(case, [table, x, u])
    assert np.array_equal(found.results[0], func.interpret(table, x, u))
    assert not found.counts
