"""The plain loop nest of a stream: one online loop over the streamed axis."""

from __future__ import annotations

import pytest
from nest_cases import around, inside, is_short, random_inputs, results, wrong
from stream_nests import PROGRAMS, attention, in_parts, stream_in, streamed, sums

from stack.errors import StackError
from stack.ir import Node, parse
from stack.ir.tile_contract import breaches
from stack.ir.traits import is_loop
from stack.passes.nest.emit import emit

NEST = """
%loop = loop(%o0) {kind="serial"} : f32[2] {(%i < 2: i32, %o0_1: f32[2])
  %loop_1 = loop(-inf:f32, 0.0:f32) {kind="serial", online=true} : (f32[], f32[])
    {(%r < 8: i32, %acc: f32[], %acc_1: f32[])
    %load = load(%p0, %i, %r) : f32[]
    %max = max(%acc, %load) : f32[]
    %abs_1 = abs(%max) : f32[]
    %eq_1 = eq(%abs_1, inf:f32) : bool[]
    %select_1 = select(%eq_1, 0.0:f32, %max) : f32[]
    %sub = sub(%acc, %select_1) : f32[]
    %exp = exp(%sub) : f32[]
    %mul = mul(%acc_1, %exp) : f32[]
    %sub_1 = sub(%load, %select_1) : f32[]
    %exp_1 = exp(%sub_1) : f32[]
    %add = add(%mul, %exp_1) : f32[]
    return %max, %add
  }
  %m = item(%loop_1) {index=0} : f32[]
  %abs = abs(%m) : f32[]
  %eq = eq(%abs, inf:f32) : bool[]
  %l = item(%loop_1) {index=1} : f32[]
  %select = select(%eq, nan:f32, %l) : f32[]
  %store = store(%o0_1, %select, %i) : f32[2]
  return %store
}
return %loop
"""


def loops(kernel: Node, online: bool) -> list[Node]:
    found = filter(is_loop, kernel.blocks[0].all_nodes)
    return [loop for loop in found if bool(loop.attrs.get("online")) == online]


def test_a_sum_of_exponentials_is_one_loop() -> None:
    kernel = emit(stream_in(streamed(sums(2, 8))))
    assert inside(kernel) == NEST.strip().replace("\n    {(", " {(")


@pytest.mark.parametrize("name", PROGRAMS)
def test_values(name: str) -> None:
    func = streamed(PROGRAMS[name])
    kernel = emit(stream_in(func))
    assert not list(breaches(kernel)) and loops(kernel, online=True)
    arrays = random_inputs(func)
    near = 3e-2 if is_short(func) else 1e-4
    assert not wrong(kernel, arrays, results(func, arrays), near)


@pytest.mark.parametrize("part", [3, 4, 8])
def test_states_of_parts(part: int) -> None:
    func = in_parts(streamed(sums(2, 8)), part)
    kernel, arrays = emit(stream_in(func)), random_inputs(func)
    assert not wrong(kernel, arrays, results(func, arrays), 1e-4)


def test_results_with_fewer_axes_have_a_loop_of_their_own() -> None:
    """Logarithms need the loop once for a row, the other result once for each column of it."""
    kernel = emit(stream_in(streamed(attention(2, 4, 3, results="%y, %z"))))
    assert [len(loop.types) for loop in loops(kernel, online=True)] == [2, 2]


# two results share no columns: their loops have only heads and rows in common
TWO_ORDERS = """func @f(%q: f32[2, 4, 3], %k: f32[2, 5, 3], %v: f32[2, 5, 3], %u: f32[2, 5, 3])
    -> (f32[2, 4, 3], f32[4, 3, 2]) at tensor {
  %s = dot(%q, %k) {rule="b m d, b n d -> b m n"} : f32[2, 4, 5]
  %m = reduce(%s) {axes=[2], kind="max"} : f32[2, 4]
  %w = broadcast(%m) {axes=[0, 1]} : f32[2, 4, 5]
  %d = sub(%s, %w) : f32[2, 4, 5]
  %e = exp(%d) : f32[2, 4, 5]
  %l = reduce(%e) {axes=[2], kind="sum"} : f32[2, 4]
  %o = dot(%e, %v) {rule="b m n, b n d -> b m d"} : f32[2, 4, 3]
  %c = broadcast(%l) {axes=[0, 1]} : f32[2, 4, 3]
  %y = div(%o, %c) : f32[2, 4, 3]
  %o1 = dot(%e, %u) {rule="b m n, b n d -> m d b"} : f32[4, 3, 2]
  %t = transpose(%l) {perm=[1, 0]} : f32[4, 2]
  %c1 = broadcast(%t) {axes=[0, 2]} : f32[4, 3, 2]
  %z = div(%o1, %c1) : f32[4, 3, 2]
  return %y, %z
}
"""


def test_states_of_results_with_other_columns_have_a_loop_of_their_own() -> None:
    """Before: the second result read a sum of the first one's columns, outside of their loop."""
    func = streamed(TWO_ORDERS)
    kernel = emit(stream_in(func))
    assert not kernel.blocks[0].free and not list(breaches(kernel))
    assert sorted(len(loop.types) for loop in loops(kernel, online=True)) == [2, 2, 2]
    arrays = random_inputs(func)
    assert not wrong(kernel, arrays, results(func, arrays), 1e-4)


def test_an_online_loop_carries_values_in_order() -> None:
    kernel = around(emit(stream_in(streamed(sums(2, 8)))))
    for change in ('kind="parallel", online=true', 'kind="grid", online=true'):
        with pytest.raises(StackError, match="an online loop is serial"):
            parse(str(kernel).replace('kind="serial", online=true', change))
    with pytest.raises(StackError, match="carries values besides memory"):
        parse(str(kernel).replace('(%o0) {kind="serial"}', '(%o0) {kind="serial", online=true}'))
