"""Steps of streams on CPUs: sink, microkernel, and values that loops at several depths share."""

from __future__ import annotations

import numpy as np
import pytest
from nest_cases import around, inside, kernel_of, random_inputs, results, wrong
from stream_nests import attention, stream_in, streamed

from stack.ir import Node
from stack.ir.traits import is_contraction, is_loop, is_number
from stack.passes.policies.step_lowering import plain_nest
from stack.passes.steps.loops import axes, loops_along
from stack.passes.steps.primitives import IllegalStep, parse_steps, run_steps
from stack.target import as_cpu, load

WEIGHTED = """func @f(%x: f32[2, 4], %v: f32[4, 3]) -> (f32[2, 3]) at tensor {
  %m = reduce(%x) {axes=[1], kind="max"} : f32[2]
  %w = broadcast(%m) {axes=[0]} : f32[2, 4]
  %d = sub(%x, %w) : f32[2, 4]
  %e = exp(%d) : f32[2, 4]
  %o = dot(%e, %v) {rule="m n, n d -> m d"} : f32[2, 3]
  return %o
}
"""
PRODUCT = """func @f(%x: f32[3, 4], %w: f32[4, 8]) -> (f32[3, 8]) at tensor {
  %f = fusion(%x, %w) {kind="gemm", name="dot_exp"} : f32[3, 8] {(%p0: f32[3, 4], %p1: f32[4, 8])
    %y = dot(%p0, %p1) {rule="m k, k n -> m n"} : f32[3, 8]
    %e = exp(%y) : f32[3, 8]
    return %e
  }
  return %f
}
"""


def nest(text: str, steps: str = "") -> Node:
    return run_steps(plain_nest(stream_in(streamed(text)), as_cpu(None)), parse_steps(steps))


def matches(kernel: Node, step: str, before: str, expected: str) -> None:
    """Check the text of a kernel before and after a step, and what it computes."""
    made = run_steps(kernel, parse_steps(step))
    for have, want in ((kernel, before), (made, expected)):
        text = want.strip()
        for depth in range(2, 10, 2):
            text = text.replace("\n" + " " * depth + "{(", " {(")
        assert inside(have) == text
    same(kernel, made)


def same(kernel: Node, made: Node) -> None:
    arrays = random_inputs(around(kernel))
    assert not wrong(made, arrays, results(around(kernel), arrays), 1e-4)


# ---- sink

SINK = """
%loop = loop(%o0) {kind="serial"} : f32[2, 3] {(%i < 2, %o0_1: f32[2, 3])
  %loop_1 = loop(%o0_1) {kind="serial"} : f32[2, 3] {(%j < 3, %o0_2: f32[2, 3])
    %loop_2 = loop(-inf:f32, 0.0:f32) {kind="serial", online=true} : (f32[], f32[])
      {(%r < 4, %acc: f32[], %acc_1: f32[])
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
      %load_1 = load(%p1, %r, %j) : f32[]
      %mul_1 = mul(%exp_1, %load_1) : f32[]
      %add = add(%mul, %mul_1) : f32[]
      return %max, %add
    }
    %m = item(%loop_2) {index=0} : f32[]
    %abs = abs(%m) : f32[]
    %eq = eq(%abs, inf:f32) : bool[]
    %o = item(%loop_2) {index=1} : f32[]
    %select = select(%eq, nan:f32, %o) : f32[]
    %store = store(%o0_2, %select, %i, %j) : f32[2, 3]
    return %store
  }
  return %loop_1
}
return %loop
"""
SUNK = """
%loop = loop(%o0) {kind="serial"} : f32[2, 3] {(%i < 2, %o0_1: f32[2, 3])
  %alloc = alloc(%i) {name="held"} : f32[3] in local
  %loop_1 = loop(%alloc) {kind="serial"} : f32[3] in local {(%j < 3, %held_1: f32[3] in local)
    %store = store(%held_1, 0.0:f32, %j) : f32[3] in local
    return %store
  }
  %loop_2 = loop(-inf:f32, %loop_1) {kind="serial", online=true} : (f32[], f32[3] in local)
    {(%r < 4, %acc: f32[], %held_2: f32[3] in local)
    %load = load(%p0, %i, %r) : f32[]
    %max = max(%acc, %load) : f32[]
    %abs_1 = abs(%max) : f32[]
    %eq_1 = eq(%abs_1, inf:f32) : bool[]
    %select = select(%eq_1, 0.0:f32, %max) : f32[]
    %sub = sub(%acc, %select) : f32[]
    %exp = exp(%sub) : f32[]
    %sub_1 = sub(%load, %select) : f32[]
    %exp_1 = exp(%sub_1) : f32[]
    %loop_4 = loop(%held_2) {kind="serial"} : f32[3] in local {(%j < 3, %held_3: f32[3] in local)
      %load_1 = load(%held_3, %j) : f32[]
      %mul = mul(%load_1, %exp) : f32[]
      %load_2 = load(%p1, %r, %j) : f32[]
      %mul_1 = mul(%exp_1, %load_2) : f32[]
      %add = add(%mul, %mul_1) : f32[]
      %store_2 = store(%held_3, %add, %j) : f32[3] in local
      return %store_2
    }
    return %max, %loop_4
  }
  %item = item(%loop_2) {index=1} : f32[3] in local
  %m = item(%loop_2) {index=0} : f32[]
  %abs = abs(%m) : f32[]
  %eq = eq(%abs, inf:f32) : bool[]
  %loop_3 = loop(%o0_1) {kind="serial"} : f32[2, 3] {(%j < 3, %o0_2: f32[2, 3])
    %o = load(%item, %j) : f32[]
    %select_1 = select(%eq, nan:f32, %o) : f32[]
    %store_1 = store(%o0_2, %select_1, %i, %j) : f32[2, 3]
    return %store_1
  }
  return %loop_3
}
return %loop
"""


def test_sink() -> None:
    matches(nest(WEIGHTED), "sink j r", SINK, SUNK)


def test_a_second_loop_goes_on_in_the_same_memory() -> None:
    """Loops over the parts of an axis: values stay in memory from one to the next."""
    kernel = nest(WEIGHTED, "partition r 1; sink j r")
    assert sum(n.op == "alloc" for n in kernel.blocks[0].all_nodes) == 1
    same(nest(WEIGHTED), kernel)


def test_the_axis_of_moved_loops_has_a_name() -> None:
    kernel = nest(WEIGHTED, "sink j r into=u")
    assert axes(kernel) == {"i": 2, "j": 3, "r": 4, "u": 3}
    same(nest(WEIGHTED), kernel)


def test_tiles_are_kept_too() -> None:
    steps = "split r 2; block r.1; vectorize j; sink k r.0"
    same(nest(attention(4, 6, 3)), nest(attention(4, 6, 3), steps))


NOT_SUNK = {
    "sink r j": "no loop over j in the body of r carries a value along it",
    "bind i cores; bind j cores; sink j r": "axis j is bound to cores",
    "sink i r": "no loop over r in the body of i carries a value along it",
    "sink j r into=i": "axis i exists already, around j or inside",
    "sink q r": "there is no loop over 'q'",
}


@pytest.mark.parametrize("steps", NOT_SUNK)
def test_not_sunk(steps: str) -> None:
    with pytest.raises(IllegalStep) as found:
        nest(WEIGHTED, steps)
    assert NOT_SUNK[steps] in str(found.value)


# ---- microkernel

ROWS = """
%alloc = alloc() {name="sums"} : f32[3, 8] in local
%broadcast = broadcast(0.0:f32) {axes=[]} : f32<8>
%loop = loop(%alloc) {kind="serial"} : f32[3, 8] in local
  {(%s < 3: i32, %sums_1: f32[3, 8] in local)
  %y = loop(%broadcast) {kind="serial"} : f32<8> {(%k < 4: i32, %acc: f32<8>)
    %load = load(%p0, %s, %k) : f32[]
    %load_1 = load(%p1, %k, 0:i32) : f32<8>
    %mul = mul(%load, %load_1) : f32<8>
    %add = add(%acc, %mul) : f32<8>
    return %add
  }
  %store = store(%sums_1, %y, %s, 0:i32) : f32[3, 8] in local
  return %store
}
%loop_1 = loop(%o0) {kind="serial"} : f32[3, 8] {(%i < 3: i32, %o0_1: f32[3, 8])
  %y_1 = load(%loop, %i, 0:i32) : f32<8>
  %e = exp(%y_1) : f32<8>
  %store_1 = store(%o0_1, %e, %i, 0:i32) : f32[3, 8]
  return %store_1
}
return %loop_1
"""
TILE = """
%alloc = alloc() {name="sums"} : f32[3, 8] in local
%load = load(%p0, 0:i32, 0:i32) : f32<3x4>
%load_1 = load(%p1, 0:i32, 0:i32) : f32<4x8>
%dot = dot(%load, %load_1) {rule="m k, k n -> m n"} : f32<3x8>
%store = store(%alloc, %dot, 0:i32, 0:i32) : f32[3, 8] in local
%loop = loop(%o0) {kind="serial"} : f32[3, 8] {(%i < 3: i32, %o0_1: f32[3, 8])
  %y_1 = load(%store, %i, 0:i32) : f32<8>
  %e = exp(%y_1) : f32<8>
  %store_1 = store(%o0_1, %e, %i, 0:i32) : f32[3, 8]
  return %store_1
}
return %loop
"""


def test_microkernel() -> None:
    kernel = kernel_of(PRODUCT, "vectorize j; fission i k into=s")
    matches(kernel, "microkernel s", ROWS, TILE)


NO_TILE = {
    "vectorize j; fission i k into=s; microkernel i": "no loop over i only stores sums of products",
    "fission j k into=s; microkernel s": "no loop over s only stores sums of products, in vectors",
    "vectorize j; fission i k into=s; microkernel q": "there is no loop over 'q'",
    "vectorize j; fission i k into=s; microkernel s vdpbf16ps": "amx has no vdpbf16ps for 3 x 8",
}


@pytest.mark.parametrize("steps", NO_TILE)
def test_no_tile(steps: str) -> None:
    with pytest.raises(IllegalStep) as found:
        run_steps(kernel_of(PRODUCT), parse_steps(steps), as_cpu(load("amx")))
    assert NO_TILE[steps] in str(found.value)


def test_a_sum_of_scaled_rows_is_no_tile() -> None:
    """One operand has the rows and the columns, the other a number for each step of the sum."""
    scaled = PRODUCT.replace("f32[3, 4]", "f32[3, 4, 8]").replace("f32[4, 8]", "f32[4]")
    kernel = kernel_of(scaled.replace("m k, k n -> m n", "m k n, k -> m n"))
    steps = parse_steps("vectorize j; fission i k into=s; microkernel s")
    with pytest.raises(IllegalStep, match="only stores sums of products"):
        run_steps(kernel, steps, as_cpu(load("amx")))


def test_an_instruction_reads_pairs() -> None:
    """4 columns of 16 rows of q become 2 columns of pairs."""
    steps = "vectorize j; fission r c into=s; stage_mem p0 c; microkernel s vdpbf16ps; pack keep"
    kernel = nest(attention(16, 3, 4, "bf16"), "block r")
    made = run_steps(kernel, parse_steps(steps), as_cpu(load("amx")))
    (dot,) = (n for n in made.blocks[0].all_nodes if is_contraction(n))
    assert [str(a.type) for a in dot.args] == ["bf16<3x2x2>", "bf16<2x16x2>"]
    same(kernel, made)


# ---- what several loops share


def test_one_loop_computes_what_loops_at_several_depths_need() -> None:
    """The scores of attention: the maximum needs them, and the sums of each column."""
    kernel = nest(attention(4, 6, 3), "block r")
    made = run_steps(kernel, parse_steps("fission r c into=s"))
    assert len(loops_along(kernel, "c")) == 3 and len(loops_along(made, "c")) == 1
    same(kernel, made)


def test_stage_takes_a_value_out_of_loops_on_which_it_does_not_depend() -> None:
    kernel = nest(WEIGHTED, "block r; rewrite powers")
    (name,) = (v for n, v in kernel.blocks[0].names.items() if n.op == "exp2")
    made = run_steps(kernel, parse_steps(f"stage {name} local"))
    powers = [loop for loop, around_it in loops_along(made, "r") if len(around_it) == 1]
    assert any(n.op == "exp2" for loop in powers for n in loop.blocks[0].nodes)
    assert sum(n.op == "exp2" for n in made.blocks[0].all_nodes) == 1
    same(kernel, made)


def test_a_loop_that_uses_another_one_sees_it_after_it_was_rewritten() -> None:
    """Loops over r are fused in the body of i, while the loop over j uses their results."""
    text = attention(4, 6, 3, results="%y, %z")
    kernel = nest(text, "split r 2; block r.1; vectorize j; sink k r.0")
    made = run_steps(kernel, parse_steps("compute_with r.0"))
    assert len(loops_along(made, "r.0")) == 1
    same(kernel, made)


def test_a_total_starts_from_nothing() -> None:
    kernel = kernel_of(PRODUCT, "split k 2")
    made = run_steps(kernel, parse_steps("block k.1"))
    starts = [loop.args[0] for loop, _ in loops_along(made, "k.1")]
    assert all(is_number(start) for start in starts)
    same(kernel, made)
    with pytest.raises(IllegalStep, match=r"no loop over k\.1 carries two values, or goes on"):
        run_steps(made, parse_steps("block k.1"))


# ---- copies


def test_a_copy_is_converted() -> None:
    kernel = nest(attention(4, 6, 3, "f16"), "block r; vectorize j; fission r c into=s")
    made = run_steps(kernel, parse_steps("stage_mem p0 c f32; stage_mem p1 s f32"))
    local = [n for n in made.blocks[0].all_nodes if n.op == "alloc"]
    assert {n.dtype.name for n in local} == {"f32"}
    in_loop = [n for loop, _ in loops_along(made, "c") for n in loop.blocks[0].all_nodes]
    assert not any(n.op == "cast" for n in in_loop)
    same(kernel, made)


def test_a_copy_that_is_used_as_it_is_is_not_converted() -> None:
    kernel = nest(attention(4, 6, 3), "block r; vectorize j; fission r c into=s")
    with pytest.raises(IllegalStep, match="the loop over c uses p0 as f32"):
        run_steps(kernel, parse_steps("stage_mem p0 c f64"))


# ---- arithmetic


@pytest.mark.parametrize("rule", ["powers", "unrounded"])
def test_cheaper_arithmetic(rule: str) -> None:
    kernel = nest(attention(4, 6, 3, "f16"), "split r 2; block r.1")
    made = run_steps(kernel, parse_steps(f"rewrite {rule}"))
    count = {"powers": "exp(", "unrounded": "cast("}[rule]
    assert inside(made).count(count) < inside(kernel).count(count)
    arrays = random_inputs(around(kernel))
    assert not wrong(made, arrays, results(around(kernel), arrays), 3e-2)


def test_an_exponential_of_no_difference_stays() -> None:
    """Its error would grow with the result."""
    kernel = kernel_of(PRODUCT)
    assert run_steps(kernel, parse_steps("rewrite powers")) is kernel


def test_values_of_attention_in_vectors() -> None:
    text = attention(5, 7, 4)
    steps = """split j 4 tail=overlap; split r 3 tail=peel; block r.1; vectorize j.1; sink k r.0;
        fission r.1 c into=s; fission k r.1 into=t; microkernel s; stage_mem o0 k"""
    kernel = nest(text, steps)
    with np.errstate(all="ignore"):
        same(nest(text), kernel)
    assert not any(is_loop(n) and "s" in axes(n) for n in kernel.blocks[0].nodes if n.blocks)
