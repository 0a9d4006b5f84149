"""The plain loop nest of a group computes what the group computes."""

from __future__ import annotations

import pytest
from nest_cases import around, fused, groups, is_short, random_inputs, results, wrong

from stack.ir import Node, parse
from stack.ir.node import walk
from stack.ir.tile_contract import breaches
from stack.passes.nest.emit import emit
from stack.passes.steps.loops import all_loops, axis_of
from stack.passes.tiling.frame import CannotTile

SOFTMAX = """func @f(%x: f32[4, 5]) -> (f32[4, 5]) at tensor {
  %m = reduce(%x) {axes=[1], kind="max"} : f32[4]
  %w = broadcast(%m) {axes=[0]} : f32[4, 5]
  %s = sub(%x, %w) : f32[4, 5]
  %e = exp(%s) : f32[4, 5]
  %t = reduce(%e) {axes=[1], kind="sum"} : f32[4]
  %v = broadcast(%t) {axes=[0]} : f32[4, 5]
  %y = div(%e, %v) : f32[4, 5]
  return %y
}
"""
NEST = """func @g(%a0: f32[4, 5]) -> (f32[4, 5]) at tensor {
  %y = kernel(%a0) {level="tile", name="reduce_sub_exp_div",
    ops=["reduce", "broadcast", "sub", "exp", "div"]} : f32[4, 5]
    {(%p0: f32[4, 5] in global, %o0: f32[4, 5] in global)
    %loop = loop(%o0) {kind="serial"} : f32[4, 5] in global
      {(%i < 4: i32, %o0_1: f32[4, 5] in global)
      %m = loop(-inf:f32) {kind="serial"} : f32[] {(%r < 5: i32, %acc: f32[])
        %load = load(%p0, %i, %r) : f32[]
        %max = max(%acc, %load) : f32[]
        return %max
      }
      %t = loop(0.0:f32) {kind="serial"} : f32[] {(%r < 5: i32, %acc_1: f32[])
        %load = load(%p0, %i, %r) : f32[]
        %s = sub(%load, %m) : f32[]
        %e = exp(%s) : f32[]
        %add = add(%acc_1, %e) : f32[]
        return %add
      }
      %loop_1 = loop(%o0_1) {kind="serial"} : f32[4, 5] in global
        {(%r < 5: i32, %o0_2: f32[4, 5] in global)
        %load = load(%p0, %i, %r) : f32[]
        %s = sub(%load, %m) : f32[]
        %e = exp(%s) : f32[]
        %y = div(%e, %t) : f32[]
        %store = store(%o0_2, %y, %i, %r) : f32[4, 5] in global
        return %store
      }
      return %loop_1
    }
    return %loop
  }
  return %y
}
"""


def test_a_softmax_is_three_loops_along_its_row() -> None:
    found = str(around(emit(fused(SOFTMAX)))).replace("%kernel", "%y", 1)
    assert found.replace("return %kernel\n", "return %y\n") == str(parse(NEST))


CASES = {
    "product": """func @f(%x: f32[3, 4], %y: f32[4, 5]) -> (f32[3, 5]) at tensor {
  %d = dot(%x, %y) {rule="m k, k n -> m n"} : f32[3, 5]
  %r = max(%d, 0.0:f32) : f32[3, 5]
  return %r
}
""",
    "short floats": """func @f(%x: bf16[3, 5]) -> (bf16[3, 5]) at tensor {
  %e = exp(%x) : bf16[3, 5]
  %y = mul(%e, %x) : bf16[3, 5]
  return %y
}
""",
    "border": """func @f(%x: f32[3, 5]) -> (f32[6, 9]) at tensor {
  %p = pad(%x, 1.5:f32) {high=[1, 2], interior=[0, 0], low=[2, 2]} : f32[6, 9]
  %y = neg(%p) : f32[6, 9]
  return %y
}
""",
    "turned": """func @f(%x: f32[3, 5]) -> (f32[5, 3]) at tensor {
  %t = transpose(%x) {perm=[1, 0]} : f32[5, 3]
  %y = exp(%t) : f32[5, 3]
  return %y
}
""",
    "one place": """func @f(%x: f32[1, 1]) -> (f32[1]) at tensor {
  %e = exp(%x) : f32[1, 1]
  %y = reduce(%e) {axes=[0], kind="sum"} : f32[1]
  return %y
}
""",
}


TWO = """func @f(%x: f32[M, 4], %y: f32[4, 5]) -> (f32[M, 5], f32[M, 5]) at tensor {
  %f = fusion(%x, %y) {kind="gemm", name="dot_exp"} : (f32[M, 5], f32[M, 5])
    {(%p0: f32[M, 4], %p1: f32[4, 5])
    %d = dot(%p0, %p1) {rule="m k, k n -> m n"} : f32[M, 5]
    %e = exp(%d) : f32[M, 5]
    return %d, %e
  }
  %d = item(%f) {index=0} : f32[M, 5]
  %e = item(%f) {index=1} : f32[M, 5]
  return %d, %e
}
"""


def test_results_of_a_product_share_its_loops() -> None:
    assert axes_of(TWO.replace("M", "3")) == ["i", "j", "k"]


def test_columns_and_reductions_of_one_element_have_loops() -> None:
    assert axes_of(TWO.replace("M", "1")) == ["j", "k"]
    thin = CASES["product"].replace("4]", "1]").replace("[4,", "[1,").replace("5]", "1]")
    assert axes_of(thin) == ["i", "j", "k"]


CHAIN = """func @f(%x: f32[4, 5], %y: f32[4, 2]) -> (f32[4]) at tensor {
  %f = fusion(%x, %y) {kind="reduction", name="chain"} : f32[4] {(%p0: f32[4, 5], %p1: f32[4, 2])
    %s = reduce(%p0) {axes=[1], kind="sum"} : f32[4]
    %sr = reshape(%s) : f32[4, 1]
    %c = concat(%sr, %p1) {axis=1} : f32[4, 3]
    %t = reduce(%c) {axes=[1], kind="max"} : f32[4]
    %tr = reshape(%t) : f32[4, 1]
    %d = concat(%p1, %tr) {axis=1} : f32[4, 3]
    %u = reduce(%d) {axes=[1], kind="sum"} : f32[4]
    return %u
  }
  return %f
}
"""
LONG = """func @f(%x: f32[4, 2, 5], %y: f32[4, 2]) -> (f32[4]) at tensor {
  %f = fusion(%x, %y) {kind="reduction", name="long"} : f32[4] {(%p0: f32[4, 2, 5], %p1: f32[4, 2])
    %s = reduce(%p0) {axes=[2], kind="sum"} : f32[4, 2]
    %c = concat(%s, %p1) {axis=1} : f32[4, 4]
    %t = reduce(%c) {axes=[1], kind="max"} : f32[4]
    return %t
  }
  return %f
}
"""
ROWS = """func @f(%x: f32[4, 5], %y: f32[2, 5]) -> (f32[3, 5]) at tensor {
  %f = fusion(%x, %y) {kind="reduction", name="rows"} : f32[3, 5] {(%p0: f32[4, 5], %p1: f32[2, 5])
    %s = reduce(%p0) {axes=[0], kind="sum"} : f32[5]
    %sr = reshape(%s) : f32[1, 5]
    %c = concat(%sr, %p1) {axis=0} : f32[3, 5]
    return %c
  }
  return %f
}
"""
READ = """func @f(%x: f32[4, 1], %y: f32[4, 2]) -> (f32[4]) at tensor {
  %f = fusion(%x, %y) {kind="reduction", name="read"} : f32[4] {(%p0: f32[4, 1], %p1: f32[4, 2])
    %e = exp(%p0) : f32[4, 1]
    %c = concat(%e, %p1) {axis=1} : f32[4, 3]
    %t = reduce(%c) {axes=[1], kind="max"} : f32[4]
    return %t
  }
  return %f
}
"""


def test_a_joined_sum_is_computed_before_the_loop_over_the_joined_axis() -> None:
    """A chain of them was computed in the loops of all that follow: text grew exponentially."""
    assert depths(CHAIN) == {"i": 0, "r": 1, "r_1": 1, "r_2": 1}


def test_what_depends_on_the_joined_axis_or_an_inner_loop_stays_inside_under_its_guard() -> None:
    assert depths(LONG) == {"i": 0, "r": 1, "r_1": 2}
    assert depths(ROWS) == {"i": 0, "j": 1, "r": 2}
    (read,) = (n for n in loads(READ) if n.args[0].attrs["name"] == "p0")
    assert len(read.args) == 5, "a guard masks it"
    (kept,) = (n for n in loads(ROWS) if n.args[0].attrs["name"] == "p0")
    assert len(kept.args) == 5
    (free,) = (n for n in loads(CHAIN) if n.args[0].attrs["name"] == "p0")
    assert len(free.args) == 3


@pytest.mark.parametrize("text", [CHAIN, LONG, ROWS, READ])
def test_values_of_joined_sums(text: str) -> None:
    kernel, func = emit(fused(text)), around(fused(text))
    arrays = random_inputs(func)
    assert not list(breaches(kernel))
    assert not wrong(kernel, arrays, results(func, arrays), 1e-5)


def depths(text: str) -> dict[str, int]:
    """The number of loops around the loop of each axis of a nest."""
    return {axis_of(loop): len(around) for loop, around in all_loops(emit(fused(text)))}


def loads(text: str) -> list[Node]:
    kernel = emit(fused(text))
    return [node for _, node in walk(kernel.blocks[0]) if node.op == "load"]


def axes_of(text: str) -> list[str]:
    """The axes of all loops of a nest, outer ones first."""
    return [axis_of(loop) for loop, _ in all_loops(emit(fused(text)))]


@pytest.mark.parametrize("name", CASES)
def test_values(name: str) -> None:
    group = fused(CASES[name])
    kernel, func = emit(group), around(group)
    assert not list(breaches(kernel))
    arrays = random_inputs(func)
    near = 3e-2 if is_short(func) else 1e-5
    assert not wrong(kernel, arrays, results(func, arrays), near)


def test_what_has_no_nest_says_why() -> None:
    text = CASES["turned"].replace("[3, 5]", "[0, 5]").replace("[5, 3]", "[5, 0]")
    with pytest.raises(CannotTile, match="empty"):
        emit(fused(text))


def check(start: int, stop: int) -> int:
    count = 0
    for func, kernel in groups(range(start, stop)):
        assert not list(breaches(kernel))
        arrays = random_inputs(func)
        try:
            want = results(func, arrays)
        except IndexError:
            continue  # what it is given to look up lies outside
        if is_short(func):
            continue
        count += 1
        why = wrong(kernel, arrays, want, 1e-4)
        assert not why, f"{why}\n{func}\n{around(kernel)}"
    return count


def test_groups_of_random_programs() -> None:
    assert check(0, 12) > 10


@pytest.mark.slow
@pytest.mark.parametrize("start", range(100, 1100, 100))
def test_many_groups_of_random_programs(start: int) -> None:
    assert check(start, start + 100) > 50
