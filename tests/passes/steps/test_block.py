"""Step block: an online loop computes its states for all iterations at once, and merges them."""

from __future__ import annotations

import random
from collections import Counter

import numpy as np
import pytest
from masked_nests import masked_streams
from nest_cases import around, drawn, drawn_nests, fused, inside, random_inputs, results, wrong
from stream_nests import attention, softmax, stream_in, stream_nests, streamed, sums

from stack.ir import Node, parse
from stack.ir.tile_contract import breaches
from stack.ir.traits import is_loop
from stack.passes.nest.emit import emit
from stack.passes.policies.gpu_streams import ProductStreams
from stack.passes.steps.loops import axis_of
from stack.passes.steps.primitives import IllegalStep, LoweredKernel, Step, parse_steps, run_steps
from stack.target import load

BEFORE = """
%loop = loop(%o0) {kind="serial"} : f32[2] {(%i < 2: i32, %o0_1: f32[2])
  %loop_1 = loop(-inf:f32, 0.0:f32) {kind="serial", online=true} : (f32[], f32[])
    {(%r.0 < 2: i32, %acc_2: f32[], %acc_3: f32[])
    %mul = mul(%r.0, 4:i32) : i32[]
    %loop_2 = loop(%acc_2, %acc_3) {kind="serial", online=true} : (f32[], f32[])
      {(%r.1 < 4: i32, %acc: f32[], %acc_1: f32[])
      %add = add(%mul, %r.1) : i32[]
      %lt = lt(%add, 6:i32) : bool[]
      %load = load(%p0, %i, %add, %lt, 0.0:f32) : f32[]
      %select_1 = select(%lt, %load, -inf:f32) : f32[]
      %max = max(%acc, %select_1) : f32[]
      %abs_1 = abs(%max) : f32[]
      %eq_1 = eq(%abs_1, inf:f32) : bool[]
      %select_2 = select(%eq_1, 0.0:f32, %max) : f32[]
      %sub = sub(%acc, %select_2) : f32[]
      %exp = exp(%sub) : f32[]
      %mul_1 = mul(%acc_1, %exp) : f32[]
      %sub_1 = sub(%select_1, %select_2) : f32[]
      %exp_1 = exp(%sub_1) : f32[]
      %add_1 = add(%mul_1, %exp_1) : f32[]
      return %max, %add_1
    }
    %item = item(%loop_2) {index=0} : f32[]
    %item_1 = item(%loop_2) {index=1} : f32[]
    return %item, %item_1
  }
"""
EXPECTED = """
%loop = loop(%o0) {kind="serial"} : f32[2] {(%i < 2: i32, %o0_1: f32[2])
  %loop_1 = loop(-inf:f32, 0.0:f32) {kind="serial", online=true} : (f32[], f32[])
    {(%r.0 < 2: i32, %acc_2: f32[], %acc_3: f32[])
    %mul = mul(%r.0, 4:i32) : i32[]
    %loop_2 = loop(-inf:f32) {kind="serial"} : f32[] {(%r.1 < 4: i32, %acc_4: f32[])
      %add_1 = add(%mul, %r.1) : i32[]
      %lt = lt(%add_1, 6:i32) : bool[]
      %load = load(%p0, %i, %add_1, %lt, 0.0:f32) : f32[]
      %select_2 = select(%lt, %load, -inf:f32) : f32[]
      %max_1 = max(%acc_4, %select_2) : f32[]
      return %max_1
    }
    %max = max(%acc_2, %loop_2) : f32[]
    %abs_1 = abs(%max) : f32[]
    %eq_1 = eq(%abs_1, inf:f32) : bool[]
    %select_1 = select(%eq_1, 0.0:f32, %max) : f32[]
    %sub = sub(%acc_2, %select_1) : f32[]
    %exp = exp(%sub) : f32[]
    %mul_1 = mul(%acc_3, %exp) : f32[]
    %loop_3 = loop(0.0:f32) {kind="serial"} : f32[] {(%r.1 < 4: i32, %acc_5: f32[])
      %add_1 = add(%mul, %r.1) : i32[]
      %lt = lt(%add_1, 6:i32) : bool[]
      %load = load(%p0, %i, %add_1, %lt, 0.0:f32) : f32[]
      %select_2 = select(%lt, %load, -inf:f32) : f32[]
      %sub_1 = sub(%select_2, %select_1) : f32[]
      %exp_1 = exp(%sub_1) : f32[]
      %add_2 = add(%acc_5, %exp_1) : f32[]
      return %add_2
    }
    %add = add(%mul_1, %loop_3) : f32[]
    return %max, %add
  }
"""
ALL_AT_ONCE = """
%loop = loop(%o0) {kind="serial"} : f32[2] {(%i < 2: i32, %o0_1: f32[2])
  %loop_1 = loop(-inf:f32) {kind="serial"} : f32[] {(%r < 6: i32, %acc_2: f32[])
    %load = load(%p0, %i, %r) : f32[]
    %max = max(%acc_2, %load) : f32[]
    return %max
  }
  %abs = abs(%loop_1) : f32[]
  %eq = eq(%abs, inf:f32) : bool[]
  %select = select(%eq, 0.0:f32, %loop_1) : f32[]
  %loop_2 = loop(0.0:f32) {kind="serial"} : f32[] {(%r < 6: i32, %acc_3: f32[])
    %load = load(%p0, %i, %r) : f32[]
    %sub = sub(%load, %select) : f32[]
    %exp = exp(%sub) : f32[]
    %add = add(%acc_3, %exp) : f32[]
    return %add
  }
"""


def nest(text: str) -> Node:
    return emit(stream_in(streamed(text)))


def starts(kernel: Node, text: str) -> bool:
    return inside(kernel).startswith(
        text.strip().replace("\n    {(", " {(").replace("\n      {(", " {(")
    )


def test_before_and_expected() -> None:
    kernel = run_steps(nest(sums(2, 6)), parse_steps("split r 4"))
    assert starts(kernel, BEFORE)
    made = run_steps(kernel, parse_steps("block r.1"))
    assert starts(made, EXPECTED)
    arrays = random_inputs(around(kernel))
    assert not wrong(made, arrays, results(around(kernel), arrays), 1e-4)


def test_the_whole_axis_is_one_pass_for_each_state() -> None:
    assert starts(run_steps(nest(sums(2, 6)), parse_steps("block r")), ALL_AT_ONCE)


def test_blocks_of_blocks() -> None:
    """After a step the loop over blocks is online still."""
    kernel = nest(softmax(2, 9))
    arrays = random_inputs(around(kernel))
    want = results(around(kernel), arrays)
    made = run_steps(kernel, parse_steps("split r 2; block r.1; split r.0 3; block r.0.1"))
    assert str(around(made)).count("online=true") == 1
    assert not wrong(made, arrays, want, 1e-4)


@pytest.mark.parametrize("program", [softmax(6, 7), sums(6, 7)])
@pytest.mark.parametrize(
    "steps",
    [
        "block r",
        "split r 2; block r.1",
        "split r 3 tail=peel; block r.1; vectorize r.1",
        "split r 4; block r.1; vectorize r.1; vectorize i",
    ],
)
def test_infinities_and_nan(program: str, steps: str) -> None:
    inf, nan = np.inf, np.nan
    rows = np.array([
        [-inf] * 7,
        [inf, 0, 1, 2, 3, 4, 5],
        [0, 1, nan, 2, 3, 4, 5],
        [0, -inf, -inf, -inf, -inf, -inf, 1],
        [-inf, -inf, -inf, -inf, -inf, 0, 1],
        [1e30, -1e30, 0, 0, 0, 0, 0],
    ], np.float32)  # fmt: skip
    func = streamed(program)
    made = run_steps(emit(stream_in(func)), parse_steps(steps))
    for got, want in zip(results(around(made), [rows]), results(func, [rows]), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5)


TWO = """func @f(%x: f32[6]) -> (f32[], f32[]) at tensor {
  %f = fusion(%x) {kind="reduction", name="two"} : (f32[], f32[]) {(%p0: f32[6])
    %y = reduce(%p0) {axes=[0], kind="sum"} : f32[]
    %z = reduce(%p0) {axes=[0], kind="max"} : f32[]
    return %y, %z
  }
  %a = item(%f) {index=0} : f32[]
  %b = item(%f) {index=1} : f32[]
  return %a, %b
}
"""


def test_it_undoes_compute_with() -> None:
    kernel = emit(fused(TWO))
    made = run_steps(kernel, parse_steps("compute_with r; block r"))
    assert len(list(filter(is_loop, made.blocks[0].all_nodes))) == 2
    arrays = random_inputs(around(kernel))
    assert not wrong(made, arrays, results(around(kernel), arrays), 1e-5)


# program, steps, the step that is refused, and what its message says
REFUSED = {
    "no such axis": (sums(2, 6), "block q", 1, "no loop over 'q'; the axes are: i of 2, r of 6"),
    "no streamed axis": (sums(2, 6), "block i", 1, "no loop over i carries two values"),
    "twice": (sums(2, 6), "block r; block r", 2, "no loop over r carries two values"),
    "from outside": (sums(2, 6), "split r 2; block r.0", 2, "does more than rescale"),
    "a block of 0": (sums(2, 6), "split r 0; block r.1", 1, "the block size is at least 1"),
    "not added": (sums(2, 6), "vectorize r", 1, "rescales what it carries: step `block` adds"),
    "order": (sums(2, 6), "split r 2; block r.1; reorder r.0 r.1", 3, "not perfectly nested"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    program, steps, number, text = REFUSED[name]
    with pytest.raises(IllegalStep) as found:
        run_steps(nest(program), parse_steps(steps))
    assert text in str(found.value) and found.value.number == number


def test_an_attribute_says_that_a_loop_is_online() -> None:
    """Without it, iterations may depend on each other in any way."""
    text = str(around(nest(sums(2, 6)))).replace(", online=true", "")
    (kernel,) = (n for n in parse(text).nodes if n.op == "kernel")
    with pytest.raises(IllegalStep, match="not online"):
        run_steps(kernel, parse_steps("block r"))


# ---- attention

FLASH = """
split j 64
split r 64
block r.1             # the scores of 64 keys at once
vectorize c
vectorize r.1
vectorize k
vectorize j.1
tensorize
bind i grid
bind j.0 grid
launch 4 stages=3
"""


def work(block: Node) -> Counter[str]:
    """The loads, products and exponentials in a loop, by shape. exp2 counts as exp."""
    found = (n for n in block.blocks[0].all_nodes if n.op in ("load", "dot", "exp", "exp2"))
    return Counter(f"{n.op.rstrip('2')} {n.type}" for n in found)


def serial(kernel: Node) -> Node:
    (loop,) = (n for n in kernel.blocks[0].all_nodes if is_loop(n, "serial"))
    return loop


def test_flash_attention_by_hand_does_the_work_of_the_policy() -> None:
    gpu = load("sm_90")
    stream = stream_in(streamed(attention(128, 192, 64, "f16")))
    lowered = LoweredKernel(emit(stream), gpu)
    lowered.take(*parse_steps(FLASH))
    made = lowered.kernel
    for _, _, kernel in lowered.done:
        func = around(kernel)
        assert parse(str(func)) is func and not list(breaches(kernel))
    tiled = ProductStreams(
        stream.rebuilt(attrs={**stream.attrs, "schedule": "m=64@grid k=64@serial"}), gpu
    ).kernel()
    assert work(serial(made)) == work(serial(tiled))
    stores = [[n for n in k.blocks[0].all_nodes if n.op == "store"] for k in (made, tiled)]
    assert [len(s) for s in stores] == [1, 1]


@pytest.mark.parametrize("keys", [80, 192])
def test_values_of_flash_attention(keys: int) -> None:
    func = streamed(attention(100, keys, 16, "f16"))
    arrays = random_inputs(func)
    want = results(func, arrays)
    lowered = LoweredKernel(emit(stream_in(func)), None)
    lowered.take(*parse_steps(FLASH))
    for _, _, made in lowered.done[-5:]:
        assert not wrong(made, arrays, want, 3e-2)


def test_fused_loops_carry_a_value_once() -> None:
    """The maximum, the sum and the weighted sum: both loops carry the maximum before."""
    func = streamed(attention(128, 128, 16, results="%y, %z"))
    before = FLASH.strip().splitlines()
    lines = [*before[:6], "compute_with r.0", *before[6:]]
    made = run_steps(emit(stream_in(func)), parse_steps("\n".join(lines)), load("sm_90"))
    assert len(serial(made).types) == 3
    arrays = random_inputs(func)
    assert not wrong(made, arrays, results(func, arrays), 1e-4)


# ---- random lists


ONLINE = (
    *("block {}", "block {}", "bound {}", "bound {} where=cut", "branch {}", "assume {}"),
    *("rfactor {}", "reverse {}", "vectorize {}", "split {} 4", "reorder {} {}", "hold {} 1"),
)


def step_for(rng: random.Random, kernel: Node) -> Step:
    """A random step; about every second one is for online loops."""
    found = [axis_of(loop) for loop in filter(is_loop, kernel.blocks[0].all_nodes)]
    if not found or rng.random() < 0.5:
        return drawn(rng, kernel)
    text = rng.choice(ONLINE).format(rng.choice(found), rng.choice(found))
    return parse_steps(text)[0]


def first_steps(rng: random.Random) -> list[Step]:
    """The first steps of about half of the lists: tiles, on which most steps depend."""
    size = rng.choice((2, 4, 8))
    text = f"split i {size}; split r {size}; block r.1; vectorize r.1; vectorize i.1; vectorize b"
    return parse_steps(text) if rng.random() < 0.5 else []


def run(seeds: range) -> Counter[str]:
    """The number of times that each step was legal."""
    taken: Counter[str] = Counter()
    found = [*stream_nests(), *masked_streams()]
    for seed, rng, func, kernel, arrays, want, near in drawn_nests(seeds, found):
        for step in first_steps(rng):
            kernel = kernel if step.why_not(kernel) else step.apply(kernel)
        done: list[str] = []
        for _ in range(8):
            step = step_for(rng, kernel)
            if not step.why_not(kernel):
                kernel = step.apply(kernel)
                done.append(str(step))
                taken[step.name] += 1
        why = wrong(kernel, arrays, want, near)
        assert not why, f"{seed}: {why} after {'; '.join(done)}\n{func}\n{around(kernel)}"
    return taken


def test_random_lists() -> None:
    taken = run(range(80))
    assert taken["block"] > 10 and taken["split"] > 10 and taken["vectorize"] > 10


@pytest.mark.parametrize("turns", [1, 2])
@pytest.mark.parametrize("more", ["", "; vectorize k"])
def test_hold_keeps_no_tiles_of_loops_inside_or_from_other_loops(turns: int, more: str) -> None:
    """Scores are sums of a loop inside; the second loop over keys is in a loop over columns."""
    func = streamed(attention(4, 8, 4, results="%y, %z"))
    steps = f"split j 2; split r 4; block r.1; vectorize r.1; vectorize j.1; hold r.0 {turns}{more}"
    kernel = emit(stream_in(func))
    made = run_steps(kernel, parse_steps(steps))
    arrays = random_inputs(func)
    assert not wrong(made, arrays, results(func, arrays), 1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("start", range(1000, 3000, 200))
def test_many_random_lists(start: int) -> None:
    assert run(range(start, start + 200))["block"] > 20
