"""Steps on loops with running totals: masked blocks, tiles that are scanned, reverse scans."""

from __future__ import annotations

import random
from math import prod

import pytest
from nest_cases import around, drawn, group_in, inside, random_inputs, results, wrong

from stack.ir import Node
from stack.ir.types import F32
from stack.passes.nest.emit import emit
from stack.passes.steps.loops import axes
from stack.passes.steps.primitives import parse_steps, run_steps
from stack.target import load

SCAN = """func @f(%x: f32[SHAPE]) -> (f32[SHAPE]) at tensor {
  %f = fusion(%x) {kind="loop", name="running"} : f32[SHAPE] {(%p0: f32[SHAPE])
    %y = scan(%p0) {axis=AXIS, kind="KIND", reverse=REVERSE} : f32[SHAPE]
    return %y
  }
  return %f
}
"""
LENGTH = 8  # of a random list

# steps: whether the scan is reversed, and the body of the kernel, without "in global"
CASES: dict[str, tuple[bool, str]] = {
    "split i 4": (
        False,
        """
%loop = loop(0.0:f32, %o0) {kind="serial"} : (f32[], f32[6])
  {(%i.0 < 2: i32, %acc_1: f32[], %o_1: f32[6])
  %mul = mul(%i.0, 4:i32) : i32[]
  %loop_1 = loop(%acc_1, %o_1) {kind="serial"} : (f32[], f32[6])
  {(%i.1 < 4: i32, %acc: f32[], %o: f32[6])
    %add = add(%mul, %i.1) : i32[]
    %lt = lt(%add, 6:i32) : bool[]
    %load = load(%p0, %add, %lt, 0.0:f32) : f32[]
    %add_1 = add(%acc, %load) : f32[]
    %store = store(%o, %add_1, %add, %lt) : f32[6]
    return %add_1, %store
  }
  %item_1 = item(%loop_1) {index=0} : f32[]
  %item_2 = item(%loop_1) {index=1} : f32[6]
  return %item_1, %item_2
}
%item = item(%loop) {index=1} : f32[6]
return %item
""",
    ),
    "split i 4 tail=front": (
        True,
        """
%loop = loop(0.0:f32, %o0) {kind="serial"} : (f32[], f32[6])
  {(%i.0 < 2: i32, %acc_1: f32[], %o_1: f32[6])
  %mul = mul(%i.0, 4:i32) : i32[]
  %loop_1 = loop(%acc_1, %o_1) {kind="serial"} : (f32[], f32[6])
  {(%i.1 < 4: i32, %acc: f32[], %o: f32[6])
    %add = add(%mul, %i.1) : i32[]
    %sub = sub(%add, 2:i32) : i32[]
    %mul_1 = mul(%sub, -1:i32) : i32[]
    %add_1 = add(%mul_1, 5:i32) : i32[]
    %sub_1 = sub(7:i32, %add) : i32[]
    %lt = lt(%sub_1, 6:i32) : bool[]
    %load = load(%p0, %add_1, %lt, 0.0:f32) : f32[]
    %add_2 = add(%acc, %load) : f32[]
    %store = store(%o, %add_2, %add_1, %lt) : f32[6]
    return %add_2, %store
  }
  %item_1 = item(%loop_1) {index=0} : f32[]
  %item_2 = item(%loop_1) {index=1} : f32[6]
  return %item_1, %item_2
}
%item = item(%loop) {index=1} : f32[6]
return %item
""",
    ),
    "split i 4 tail=front; vectorize i.1": (
        True,
        """
%loop = loop(0.0:f32, %o0) {kind="serial"} : (f32[], f32[6])
  {(%i.0 < 2: i32, %acc_1: f32[], %o_1: f32[6])
  %mul = mul(%i.0, -4:i32) : i32[]
  %add = add(%mul, 4:i32) : i32[]
  %load = load(%p0, %add) {clip=true} : f32<4>
  %reduce = reduce(%load) {axes=[0], kind="sum"} : f32[]
  %add_1 = add(%acc_1, %reduce) : f32[]
  %scan = scan(%load) {axis=0, kind="sum", reverse=true} : f32<4>
  %add_2 = add(%acc_1, %scan) : f32<4>
  %store = store(%o_1, %add_2, %add) {clip=true} : f32[6]
  return %add_1, %store
}
%item = item(%loop) {index=1} : f32[6]
return %item
""",
    ),
    "split i 4; vectorize i.1": (
        True,
        """
%iota = iota() {axis=0} : i32<4>
%sub = sub(3:i32, %iota) : i32<4>
%loop = loop(0.0:f32, %o0) {kind="serial"} : (f32[], f32[6])
  {(%i.0 < 2: i32, %acc_1: f32[], %o_1: f32[6])
  %mul = mul(%i.0, -4:i32) : i32[]
  %add = add(%mul, 2:i32) : i32[]
  %mul_1 = mul(%i.0, 4:i32) : i32[]
  %add_1 = add(%mul_1, %sub) : i32<4>
  %lt = lt(%add_1, 6:i32) : bool<4>
  %load = load(%p0, %add, %lt, 0.0:f32) : f32<4>
  %reduce = reduce(%load) {axes=[0], kind="sum"} : f32[]
  %add_2 = add(%acc_1, %reduce) : f32[]
  %scan = scan(%load) {axis=0, kind="sum", reverse=true} : f32<4>
  %add_3 = add(%acc_1, %scan) : f32<4>
  %store = store(%o_1, %add_3, %add, %lt) : f32[6]
  return %add_2, %store
}
%item = item(%loop) {index=1} : f32[6]
return %item
""",
    ),
}


def nest_of(shape: tuple[int, ...], axis: int, kind: str, reverse: bool) -> Node:
    sizes = ", ".join(map(str, shape))
    text = SCAN.replace("SHAPE", sizes).replace("AXIS", str(axis)).replace("KIND", kind)
    return emit(group_in(text.replace("REVERSE", str(reverse).lower())), running=F32)


@pytest.mark.parametrize("steps", CASES)
def test_before_and_expected(steps: str) -> None:
    reverse, expected = CASES[steps]
    nest = nest_of((6,), 0, "sum", reverse)
    made = run_steps(nest, parse_steps(steps), load("sm_90"))
    assert inside(made) == expected.strip().replace("\n  {(", " {(")
    arrays = random_inputs(around(nest))
    assert not wrong(made, arrays, results(around(nest), arrays), 1e-6)


SMALL = 512  # iterations of a nest that is interpreted
NESTS = [
    nest_of(shape, axis, kind, reverse)
    for shape, axis in [((7,), 0), ((5, 6), 1), ((6, 5), 0), ((2, 7, 3), 1)]
    for kind in ("sum", "prod", "max")
    for reverse in (False, True)
]


def run(seeds: range) -> int:
    """The number of legal steps that were taken. Fails at the first that changes values."""
    legal = 0
    for seed in seeds:
        rng = random.Random(seed)
        nest = kernel = rng.choice(NESTS)
        arrays = random_inputs(around(nest))
        want, done = results(around(nest), arrays), list[str]()
        for step in (drawn(rng, kernel) for _ in range(LENGTH)):
            if step.why_not(kernel) or prod(axes(step.apply(kernel)).values()) > SMALL:
                continue
            kernel = step.apply(kernel)
            done.append(str(step))
            why = wrong(kernel, arrays, want, 1e-4)
            assert not why, f"{seed}: {why} after {'; '.join(done)}\n{around(nest)}"
        legal += len(done)
    return legal


def test_random_lists() -> None:
    assert run(range(60)) > 60


@pytest.mark.slow
@pytest.mark.parametrize("start", range(1000, 2000, 200))
def test_many_random_lists(start: int) -> None:
    assert run(range(start, start + 200)) > 200
