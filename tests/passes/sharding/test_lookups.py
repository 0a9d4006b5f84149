"""Tables of which each rank has a part: who has an element reads it, others add 0."""

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
