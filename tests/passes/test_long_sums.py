"""long_sums: remainders of long sums of f32, and the loops that are left alone."""

from __future__ import annotations

import math

import numpy as np
import pytest

from stack.ir import Func, Node, parse, verify
from stack.ir.builder import rebuild
from stack.passes.gpu_loops.long_sums import sum_with_remainders

HEAD = """func @main(%x: f32[500, 7]) -> (f32[7]) at tensor {
  %y = kernel(%x) {at=[-1], level="loop", name="reduce", ops=["reduce"]} : f32[7] \
{(%p0: f32[500, 7] in global, %o0: f32[7] in global)
    %loop = loop(%o0) {kind="grid"} : f32[7] in global {(%b < 7, %m: f32[7] in global)
"""
TAIL = """      %w = store(%m, %s, %b) : f32[7] in global
      return %w
    }
    return %loop
  }
  return %y
}
"""
SUM = """      %s = loop(0.0:f32) {kind="serial"} : f32[] {(%k < 500, %acc: f32[])
        %v = load(%p0, %k, %b) : f32[]
        %t = add(%acc, %v) : f32[]
        return %t
      }
"""
EXPECTED = """      %loop_1 = loop(0.0:f32, 0.0:f32) {kind="serial"} : (f32[], f32[]) \
{(%k < 500, %acc: f32[], %low_acc: f32[])
        %v = load(%p0, %k, %b) : f32[]
        %t = add(%acc, %v) : f32[]
        %sub = sub(%t, %acc) : f32[]
        %sub_1 = sub(%t, %sub) : f32[]
        %sub_2 = sub(%acc, %sub_1) : f32[]
        %sub_3 = sub(%v, %sub) : f32[]
        %add_1 = add(%sub_2, %sub_3) : f32[]
        %add_2 = add(%low_acc, %add_1) : f32[]
        return %t, %add_2
      }
      %item = item(%loop_1) {index=1} : f32[]
      %isfinite = isfinite(%item) : bool[]
      %item_1 = item(%loop_1) {index=0} : f32[]
      %add = add(%item_1, %item) : f32[]
      %s = select(%isfinite, %add, %item_1) : f32[]
"""


def summed(text: str) -> Func:
    def visit(node: Node, args: tuple[Node, ...], blocks: tuple[object, ...]) -> Node:
        if node.op != "kernel":
            return node
        block = sum_with_remainders(node.blocks[0])
        return Node(node.op, args, node.attrs, node.type, (block,))

    made = rebuild(parse(HEAD + text + TAIL), visit)
    verify(made)
    return made


def test_a_sum_gets_a_remainder() -> None:
    assert str(summed(SUM)) == str(parse(HEAD + EXPECTED + TAIL))


@pytest.mark.parametrize(
    "text",
    [
        SUM.replace("500, %acc", "15, %acc"),
        SUM.replace("serial", "unroll"),
        SUM.replace("add(%acc, %v)", "max(%acc, %v)"),
        SUM.replace("%t = add(%acc, %v)", "%u = mul(%acc, %v) : f32[]\n%t = add(%acc, %u)"),
        SUM.replace("add(%acc, %v)", "add(%acc, %acc)"),
    ],
    ids=["short", "unrolled", "max", "a recurrence", "itself"],
)
def test_other_loops_stay(text: str) -> None:
    assert summed(text) is parse(HEAD + text + TAIL)


def test_one_of_several_results() -> None:
    text = """      %two = loop(0.0:f32, 0.0:f32) {kind="serial"} : (f32[], f32[]) \
{(%k < 500, %acc: f32[], %high: f32[])
        %v = load(%p0, %k, %b) : f32[]
        %t = add(%acc, %v) : f32[]
        %h = max(%high, %v) : f32[]
        return %t, %h
      }
      %one = item(%two) {index=0} : f32[]
      %most = item(%two) {index=1} : f32[]
      %s = add(%one, %most) : f32[]
"""
    made = summed(text)
    x = np.random.default_rng(3).random((500, 7)).astype(np.float32)
    want = [math.fsum(x[:, i].tolist()) + x[:, i].max() for i in range(7)]
    np.testing.assert_allclose(made.interpret(x), want, rtol=1e-7)


def test_the_error_does_not_grow(rng: np.random.Generator) -> None:
    """One rounding of the result, where the plain sum loses several digits."""
    x = (1e4 + rng.random((500, 7))).astype(np.float32)
    want = np.array([math.fsum(x[:, i].tolist()) for i in range(7)])
    step = np.spacing(want.astype(np.float32))
    assert np.abs(summed(SUM).interpret(x) - want).max() <= 0.51 * step.max()
    plain = parse(HEAD + SUM + TAIL).interpret(x)
    assert np.abs(plain - want).max() > 2 * step.max()


def test_a_sum_of_sums() -> None:
    text = """      %s = loop(0.0:f32) {kind="serial"} : f32[] {(%j < 20, %sum: f32[])
        %i = mul(%j, 25:i64) : i64[]
        %one = loop(0.0:f32) {kind="serial"} : f32[] {(%k < 25, %acc: f32[])
          %at = add(%i, %k) : i64[]
          %v = load(%p0, %at, %b) : f32[]
          %t = add(%acc, %v) : f32[]
          return %t
        }
        %all = add(%sum, %one) : f32[]
        return %all
      }
"""
    x = np.random.default_rng(4).random((500, 7)).astype(np.float32)
    made = summed(text)
    assert str(made).count("%low_") > 2
    np.testing.assert_allclose(made.interpret(x), x.sum(0, dtype=np.float64), rtol=7e-8)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_infinities_and_nan_stay(rng: np.random.Generator) -> None:
    x = rng.standard_normal((500, 7)).astype(np.float32)
    x[3, 0], x[4, 1], x[5, 2], x[6, 2] = math.inf, -math.inf, math.inf, -math.inf
    x[7, 3], x[:, 4], x[-1, 5] = math.nan, 3e38, math.inf
    found = summed(SUM).interpret(x)
    np.testing.assert_array_equal(
        found[:6], [math.inf, -math.inf, math.nan, math.nan] + [math.inf] * 2
    )
    assert math.isfinite(found[6])
