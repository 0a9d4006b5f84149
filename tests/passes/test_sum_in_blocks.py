"""long_sums of a CPU: blocks of sums, the loops that are left alone, and what rounding is left."""

from __future__ import annotations

import math

import numpy as np
import pytest
from kernel_cases import program, tile_group

from stack.ir import DTYPES, Builder, Func, Node, param, parse, tensor, verify
from stack.ir.builder import rebuild
from stack.ir.cost import total
from stack.passes.distribute import distribute_kernel
from stack.passes.tiling.single_ops import alone

HEAD = """func @main(%x: f32[100, 8]) -> (f32[8]) at tensor {
  %y = kernel(%x) {at=[-1], level="loop", name="reduce", ops=["reduce"]} : f32[8] \
{(%p0: f32[100, 8] in global, %o0: f32[8] in global)
    %zero = broadcast(0.0:f32) {axes=[]} : f32<8>
"""
TAIL = """    %w = store(%o0, %s, 0:i64) : f32[8] in global
    return %w
  }
  return %y
}
"""
SUM = """    %s = loop(%zero) {kind="serial"} : f32<8> {(%k < 100, %acc: f32<8>)
      %v = load(%p0, %k, 0:i64) : f32<8>
      %t = add(%acc, %v) : f32<8>
      return %t
    }
"""
EXPECTED = """    %s = loop(%zero) {kind="serial"} : f32<8> {(%block1 < 4, %acc_b1: f32<8>)
      %mul = mul(%block1, 32:i64) : i64[]
      %add = add(%mul, 32:i64) : i64[]
      %min = min(%add, 100:i64) : i64[]
      %loop = loop(%mul, %min, %zero) {kind="serial", limited=true} : f32<8> \
{(%k < 100, %acc: f32<8>)
        %v = load(%p0, %k, 0:i64) : f32<8>
        %t = add(%acc, %v) : f32<8>
        return %t
      }
      %add_1 = add(%acc_b1, %loop) : f32<8>
      return %add_1
    }
"""


def blocked(text: str) -> Func:
    def visit(node: Node, args: tuple[Node, ...], blocks: tuple[object, ...]) -> Node:
        if node.op != "kernel":
            return node
        return distribute_kernel(node)

    made = rebuild(parse(HEAD + text + TAIL), visit)
    verify(made)
    return made


def test_a_long_sum_is_a_sum_of_blocks() -> None:
    assert str(blocked(SUM)) == str(parse(HEAD + EXPECTED + TAIL))


@pytest.mark.parametrize(
    "text",
    [
        SUM.replace("100, %acc", "63, %acc"),
        SUM.replace("add(%acc, %v)", "max(%acc, %v)"),
        SUM.replace("serial", "unroll"),
        SUM.replace("add(%acc, %v)", "add(%acc, %acc)"),
    ],
    ids=["short", "max", "unrolled", "itself"],
)
def test_other_loops_stay(text: str) -> None:
    assert blocked(text) is parse(HEAD + text + TAIL)


def test_a_running_sum_stays() -> None:
    """Intermediate results that are stored have to be the sum so far."""
    text = """    %both = loop(%zero, %o0) {kind="serial"} : (f32<8>, f32[8] in global) \
{(%k < 100, %acc: f32<8>, %m: f32[8] in global)
      %v = load(%p0, %k, 0:i64) : f32<8>
      %t = add(%acc, %v) : f32<8>
      %n = store(%m, %t, 0:i64) : f32[8] in global
      return %t, %n
    }
    %s = item(%both) {index=0} : f32<8>
"""
    assert blocked(text) is parse(HEAD + text + TAIL)


def test_turns_of_a_part() -> None:
    """The work of a kernel is what it was, and an addition for each block."""
    plain, split = (f.nodes[0].blocks[0] for f in (parse(HEAD + SUM + TAIL), blocked(SUM)))
    counts = [total(b.nodes).flops for b in (plain, split)]
    assert counts[0] == 800
    assert counts[0] < counts[1] < 1.4 * counts[0]


def test_what_else_a_loop_carries_goes_through() -> None:
    text = """    %two = loop(%zero, %zero) {kind="serial"} : (f32<8>, f32<8>) \
{(%k < 100, %acc: f32<8>, %high: f32<8>)
      %v = load(%p0, %k, 0:i64) : f32<8>
      %t = add(%acc, %v) : f32<8>
      %h = max(%high, %v) : f32<8>
      return %t, %h
    }
    %one = item(%two) {index=0} : f32<8>
    %most = item(%two) {index=1} : f32<8>
    %s = add(%one, %most) : f32<8>
"""
    made = blocked(text)
    assert str(made).count("limited=true") == 1
    x = np.random.default_rng(3).random((100, 8)).astype(np.float32)
    np.testing.assert_allclose(made.interpret(x), x.sum(0, dtype=np.float64) + x.max(0), rtol=2e-7)


@pytest.mark.parametrize("rows", [4096, 4099, 30011], ids=["even", "prime", "three levels"])
@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_roundings_stay_small(dtype: str, rows: int) -> None:
    """Equal numbers round the same way: one accumulator is off by hundreds of roundings."""
    values = np.full((rows, 2), 0.1, DTYPES[dtype].numpy)
    node = Builder().reduce(param("x", tensor(dtype, rows, 2)), kind="sum", axes=(0,))
    found = program(distribute_kernel(tile_group(alone(node)))).interpret(values)
    want = math.fsum(values[:, 0].tolist())
    unit = np.finfo(values.dtype).eps / 2
    assert np.abs(found - want).max() < 12 * unit * want
    plain = float(np.add.accumulate(values[:, 0])[-1])
    assert abs(plain - want) > 50 * unit * want
