"""Rows that are columns of memory are turned a block at a time, where there is a block of them."""

from __future__ import annotations

import numpy as np
import pytest

from stack.ir import Builder, Func, Node, param, parse, tensor, verify
from stack.ir.builder import constant, rebuild
from stack.passes.cpu_loops.turned import CACHE_SHARE
from stack.passes.distribute import distribute_kernel
from stack.rewrite import Pipeline
from stack.target import as_cpu, load

BEFORE = """func @main(%x: f32[5, 35]) -> (f32[35, 5]) at tensor {
  %y = kernel(%x) {level="tile", name="centred", ops=["reduce", "sub"]} : f32[35, 5] \
{(%p0: f32[5, 35] in global, %o0: f32[35, 5] in global)
    %lane = iota() {axis=0} : i64<5>
    %loop = loop(%o0) {kind="grid"} : f32[35, 5] in global {(%i < 35, %m: f32[35, 5] in global)
      %row = broadcast(%i) {axes=[]} : i64<5>
      %v = load(%p0, %lane, %row) : f32<5>
      %sum = reduce(%v) {axes=[0], kind="sum"} : f32[]
      %new = sub(%v, %sum) : f32<5>
      %store = store(%m, %new, %i, 0:i64) : f32[35, 5] in global
      return %store
    }
    return %loop
  }
  return %y
}
"""
EXPECTED = """func @main(%x: f32[5, 35]) -> (f32[35, 5]) at tensor {
  %y = kernel(%x) {level="loop", name="centred", ops=["reduce", "sub"]} : f32[35, 5] \
{(%p0: f32[5, 35] in global, %o0: f32[35, 5] in global)
    %alloc = alloc() {name="rows__3"} : f32[8, 5] in local
    %loop = loop(%o0) {kind="parallel"} : f32[35, 5] in global \
{(%b__1 < 5, %m: f32[35, 5] in global)
      %mul = mul(%b__1, 8:i64) : i64[]
      %min = min(%mul, 27:i64) : i64[]
      %sub = sub(%mul, %min) : i64[]
      %load = load(%p0, 0:i64, %min) : f32<5x8>
      %transpose = transpose(%load) {perm=[1, 0]} : f32<8x5>
      %store = store(%alloc, %transpose, 0:i64, 0:i64) : f32[8, 5] in local
      %loop_1 = loop(%sub, 8:i64, %m, %store) {kind="serial", limited=true} \
: (f32[35, 5] in global, f32[8, 5] in local) \
{(%r__2 < 8, %m__4: f32[35, 5] in global, %m__5: f32[8, 5] in local)
        %load_1 = load(%m__5, %r__2, 0:i64) : f32<5>
        %sum = reduce(%load_1) {axes=[0], kind="sum"} : f32[]
        %new = sub(%load_1, %sum) : f32<5>
        %add = add(%min, %r__2) : i64[]
        %store_1 = store(%m__4, %new, %add, 0:i64) : f32[35, 5] in global
        return %store_1, %m__5
      }
      %item = item(%loop_1) {index=0} : f32[35, 5] in global
      return %item
    }
    return %loop
  }
  return %y
}
"""


def across(rows: int, width: int, dtype: str = "f32") -> Func:
    """Rows without their sums, of an array that has them as columns."""
    b, x = Builder(), param("x", tensor(dtype, width, rows))
    v = b.transpose(x, perm=(1, 0))
    total = b.broadcast(b.reduce(v, kind="sum", axes=(1,)), axes=(0,), type=v.type)
    return b.func("main", [x], [b.sub(v, total)])


def lowered(func: Func) -> Func:
    made = Pipeline("fuse,tile,distribute").run(func, target=load("avx2")).func
    verify(made)
    return made


def is_turned(func: Func) -> bool:
    return 'name="rows__' in str(lowered(func))


def test_text() -> None:
    def visit(node: Node, args: tuple[Node, ...], blocks: tuple[object, ...]) -> Node:
        return distribute_kernel(node, target=load("avx2")) if node.op == "kernel" else node

    made = rebuild(parse(BEFORE), visit)
    verify(made)
    assert str(made) == str(parse(EXPECTED))


def test_some_columns_are_turned_together() -> None:
    assert is_turned(across(8, 5))
    assert not is_turned(across(7, 5))


def test_rows_as_they_lie_are_not() -> None:
    b, x = Builder(), param("x", tensor("f32", 64, 64))
    total = b.broadcast(b.reduce(x, kind="sum", axes=(1,)), axes=(0,), type=x.type)
    assert not is_turned(b.func("main", [x], [b.sub(x, total)]))


def test_nor_sums_of_columns_whose_lanes_lie_together() -> None:
    b, x = Builder(), param("x", tensor("f32", 64, 64))
    assert not is_turned(b.func("main", [x], [b.reduce(x, kind="sum", axes=(0,))]))


def test_a_block_of_rows_fits_into_the_cache() -> None:
    most = int(CACHE_SHARE * as_cpu(load("avx2")).cache_bytes) // 32
    assert is_turned(across(64, most))
    assert not is_turned(across(64, most + 1))


@pytest.mark.parametrize("dtype", ["f32", "bf16", "i64"])
@pytest.mark.parametrize("rows, width", [(16, 1), (17, 3), (33, 16), (41, 29), (64, 64), (0, 3)])
def test_values(rows: int, width: int, dtype: str) -> None:
    func = across(rows, width, dtype)
    x = np.random.default_rng(rows).integers(-9, 9, (width, rows))
    x = x.astype(func.params[0].dtype.numpy)
    np.testing.assert_array_equal(lowered(func).interpret(x), func.interpret(x))


Pads = tuple[tuple[int, int], ...]


def padded(shape: tuple[int, ...], perm: tuple[int, ...], pads: Pads, dtype: str = "f32") -> Func:
    """A transposed array with sevens around it."""
    b, x = Builder(), param("x", tensor(dtype, *shape))
    v = b.transpose(x, perm=perm)
    low, high = zip(*pads, strict=True)
    made = b.pad(v, constant(7, v.dtype), low=low, high=high, interior=(0,) * len(low))
    return b.func("main", [x], [made])


NONE, ONE = (0, 0), (1, 1)
# an array, its axes as they are read, what is around it, whether blocks of it are turned
PADDED: dict[str, tuple[tuple[int, ...], tuple[int, ...], Pads, bool]] = {
    "an image": ((2, 9, 9, 11), (0, 2, 3, 1), (NONE, ONE, ONE, NONE), True),
    "more on one side": ((1, 9, 4, 19), (0, 2, 3, 1), (NONE, (0, 2), (3, 0), NONE), True),
    "more around it than in it": ((9, 2, 4), (1, 2, 0), ((4, 9), (7, 8), NONE), True),
    "of few places": ((6, 3, 3), (1, 2, 0), (ONE, ONE, NONE), True),
    "of no place": ((6, 2, 0), (1, 2, 0), (ONE, ONE, NONE), False),
    "of one place": ((6, 2, 1), (1, 2, 0), (ONE, ONE, NONE), False),
    "around the outer axis alone": ((9, 3, 20), (1, 2, 0), ((2, 1), NONE, NONE), True),
    "along lanes": ((5, 20), (1, 0), (NONE, ONE), False),
}


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize("name", PADDED)
def test_what_is_around_an_array_is_a_row_of_its_own(name: str, dtype: str) -> None:
    shape, perm, pads, is_in_blocks = PADDED[name]
    func = padded(shape, perm, pads, dtype)
    x = np.random.default_rng(len(name)).integers(-9, 9, shape)
    x = x.astype(func.params[0].dtype.numpy)
    np.testing.assert_array_equal(lowered(func).interpret(x), func.interpret(x))
    assert is_turned(padded(shape, perm, pads)) == is_in_blocks


@pytest.mark.parametrize("perm", [(1, 0), (2, 0, 1), (1, 2, 0), (0, 2, 1), (3, 1, 0, 2)])
def test_the_grid_walks_along_what_is_read(perm: tuple[int, ...]) -> None:
    """Whichever of its axes that is: an image whose channels stood last, above all."""
    shape = (9, 17, 10, 33)[: len(perm)]
    b, x = Builder(), param("x", tensor("f32", *shape))
    made = b.transpose(x, perm=perm)
    func = b.func("main", [x], [b.add(made, made)])
    assert is_turned(func)
    values = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    np.testing.assert_array_equal(lowered(func).interpret(values), func.interpret(values))


BELOW = """func @main(%x: f32[32, 20]) -> (f32[5, 20, 8]) at tensor {
  %y = kernel(%x) {level="tile", name="padded", ops=["pad"]} : f32[5, 20, 8] \
{(%p0: f32[32, 20] in global, %o0: f32[5, 20, 8] in global)
    %lane = iota() {axis=0} : i64<8>
    %loop = loop(%o0) {kind="grid"} : f32[5, 20, 8] in global \
{(%i < 5, %m: f32[5, 20, 8] in global)
      %block = sub(%i, 1:i64) : i64[]
      %inside = ge(%block, 0:i64) : bool[]
      %mask = broadcast(%inside) {axes=[]} : bool<8>
      %begin = mul(%block, 8:i64) : i64[]
      %column = add(%begin, %lane) : i64<8>
      %loop_1 = loop(%m) {kind="grid"} : f32[5, 20, 8] in global \
{(%j < 20, %n: f32[5, 20, 8] in global)
        %row = broadcast(%j) {axes=[]} : i64<8>
        %v = load(%p0, %column, %row, %mask, 0.0:f32) : f32<8>
        %store = store(%n, %v, %i, %j, 0:i64) : f32[5, 20, 8] in global
        return %store
      }
      return %loop_1
    }
    return %loop
  }
  return %y
}
"""


def test_lanes_that_a_mask_leaves_out_are_not_read() -> None:
    """They begin before the array; the verifier looks where blocks are."""
    func = parse(BELOW)
    made = Pipeline("distribute").run(func, target=load("avx2")).func
    verify(made)
    assert 'name="rows__' in str(made)
    x = np.random.default_rng(0).normal(size=(32, 20)).astype(np.float32)
    np.testing.assert_array_equal(made.interpret(x), func.interpret(x))
