"""Lanes that a loop carries: a power of two registers, and what is left of one."""

from __future__ import annotations

import numpy as np
import pytest
from distributed import distributed

from stack.ir import Func
from stack.ir.node import walk

# columns of 60 are summed: a loop carries their sums
COLUMNS = """func @main(%x: f32[7, 60], %y: f32[60]) -> (f32[60]) at tensor {
  %z = kernel(%x, %y) {level="tile", name="sums", ops=["reduce"]} : f32[60] \
{(%p0: f32[7, 60] in global, %p1: f32[60] in global, %o0: f32[60] in global)
    %zero = broadcast(0.0:f32) {axes=[]} : f32<60>
    %line = load(%p1, 0:i64) : f32<60>
    %sum = loop(%zero) {kind="serial"} : f32<60> {(%r < 7, %acc: f32<60>)
      %v = load(%p0, %r, 0:i64) : f32<60>
      %n = add(%acc, %v) : f32<60>
      return %n
    }
    %t = add(%sum, %line) : f32<60>
    %store = store(%o0, %t, 0:i64) : f32[60] in global
    return %store
  }
  return %z
}
"""
# every row is scaled: a loop carries memory alone
ROWS = """func @main(%x: f32[7, 60], %y: f32[60]) -> (f32[7, 60]) at tensor {
  %z = kernel(%x, %y) {level="tile", name="rows", ops=["mul"]} : f32[7, 60] \
{(%p0: f32[7, 60] in global, %p1: f32[60] in global, %o0: f32[7, 60] in global)
    %line = load(%p1, 0:i64) : f32<60>
    %loop = loop(%o0) {kind="serial"} : f32[7, 60] in global {(%r < 7, %m: f32[7, 60] in global)
      %v = load(%p0, %r, 0:i64) : f32<60>
      %n = mul(%v, %line) : f32<60>
      %store = store(%m, %n, %r, 0:i64) : f32[7, 60] in global
      return %store
    }
    return %loop
  }
  return %z
}
"""
# the sum of all: lanes are added up once, after a loop that carries them
FULL = COLUMNS.replace("f32[60]) at tensor", "f32[]) at tensor").replace(
    "f32[60] {(%p0", "f32[] {(%p0"
)
FULL = FULL.replace("%o0: f32[60]", "%o0: f32[]").replace(
    "%store = store(%o0, %t, 0:i64) : f32[60] in global",
    '%all = reduce(%t) {axes=[0], kind="sum"} : f32[]\n'
    "    %store = store(%o0, %all) : f32[] in global",
)
KEEPS = {"columns": COLUMNS, "full": FULL}


def widths(func: Func) -> set[int]:
    """Lanes of all vectors of a function."""
    nodes = [n for block, _ in walk(func.body) for n in (*block.params, *block.nodes)]
    return {int(n.shape[0]) for n in nodes if getattr(n.type, "space", "") == "tile"}


@pytest.mark.parametrize("name", KEEPS)
def test_what_a_loop_keeps_is_cut(name: str) -> None:
    func = distributed(KEEPS[name])
    assert widths(func) == {32, 16, 12}


def test_lanes_that_no_loop_carries_stay_together() -> None:
    assert widths(distributed(ROWS)) == {60}


@pytest.mark.parametrize("lanes", [64, 32, 15, 7])
def test_a_power_of_two_and_less_than_a_register_stay_whole(lanes: int) -> None:
    assert widths(distributed(COLUMNS.replace("60", str(lanes)))) == {lanes}


def test_a_register_holds_half_as_many_of_f64() -> None:
    text = COLUMNS.replace("60", "15").replace("f32", "f64")
    assert widths(distributed(text)) == {8, 7}


@pytest.mark.parametrize("name", KEEPS)
def test_values(name: str, rng: np.random.Generator) -> None:
    x, y = rng.normal(size=(7, 60)).astype(np.float32), rng.normal(size=60).astype(np.float32)
    found = distributed(KEEPS[name]).interpret(x, y)
    sums = x.astype(np.float64).sum(0) + y
    want = {"columns": sums, "full": sums.sum()}[name]
    np.testing.assert_allclose(found, want, rtol=1e-5, atol=1e-5)
