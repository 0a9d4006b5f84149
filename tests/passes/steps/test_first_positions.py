"""Rule `first_positions` of step rewrite: the position of the best value in a loop."""

from __future__ import annotations

import numpy as np
import pytest
from nest_cases import altered, around, inside, results

from stack.ir import Node, parse, verify
from stack.passes.policies.step_lowering import plain_nest
from stack.passes.steps.primitives import parse_steps, run_steps
from stack.rewrite import Pipeline
from stack.target import as_gpu

INF, NAN = np.inf, np.nan
PROGRAM = """func @f(%x: {dtype}[{rows}, {size}]) -> (i64[{rows}]) at tensor {{
  %y = argreduce(%x) {{axis=1, kind="{kind}"}} : i64[{rows}]
  return %y
}}
"""
LANES = "split r 4; reorder r.0 r.1; block r.1; vectorize r.1"
BEFORE = """\
    %broadcast_1_1 = max(%acc, %load) : f32<4>
    %eq_1 = eq(%acc, %broadcast_1_1) : bool<4>
    %ne_1 = ne(%acc, %acc) : bool<4>
    %or_1 = or(%eq_1, %ne_1) : bool<4>
    %select_1 = select(%or_1, %acc_1, 8:i32) : i32<4>
    %eq_2 = eq(%load, %broadcast_1_1) : bool<4>
    %ne_2 = ne(%load, %load) : bool<4>
    %or_2 = or(%eq_2, %ne_2) : bool<4>
    %add = add(%mul, %iota) : i32<4>
    %select_2 = select(%or_2, %add, 8:i32) : i32<4>
    %min = min(%select_1, %select_2) : i32<4>
    return %broadcast_1_1, %min
"""
EXPECTED = """\
    %broadcast_1_1 = max(%acc, %load) : f32<4>
    %eq_1 = eq(%acc, %broadcast_1_1) : bool<4>
    %ne_1 = ne(%acc, %acc) : bool<4>
    %or_1 = or(%eq_1, %ne_1) : bool<4>
    %add = add(%mul, %iota) : i32<4>
    %select_1 = select(%or_1, %acc_1, %add) : i32<4>
    return %broadcast_1_1, %select_1
"""


def nest(size: int = 8, dtype: str = "f32", kind: str = "max", rows: int = 3) -> Node:
    """The loop nest of the position of the best value of each row, with states in lanes."""
    text = PROGRAM.format(size=size, dtype=dtype, kind=kind, rows=rows)
    func = Pipeline("stream{min_axis=2,loops=blocks}").run(parse(text), target=as_gpu(None)).func
    (stream,) = (n for n in func.nodes if n.op == "stream")
    return run_steps(plain_nest(stream, as_gpu(None)), parse_steps(LANES))


def rewritten(kernel: Node) -> Node:
    made = run_steps(kernel, parse_steps("rewrite first_positions"))
    verify(around(made))
    return made


def test_before_and_expected() -> None:
    before = nest()
    assert BEFORE in inside(before)
    made = inside(rewritten(before))
    assert EXPECTED in made
    assert "loop(%broadcast, %iota)" in made  # the positions of the first iteration
    assert "online" not in made  # a later iteration is after an earlier one


def test_an_array_whose_indices_need_64_bits() -> None:
    before = nest(rows=1 << 28)
    assert "cast(" in inside(before)  # of a position to the 32 bits of the state
    assert inside(before).count("eq(") == 3
    assert inside(rewritten(before)).count("eq(") == 2


ROWS = [
    [1, 3, 3, 2, 3, 0, 1, 3, -1, 3],
    [-INF] * 10,
    [INF, 1, INF, 0, 0, 0, 0, 0, 0, 0],
    [0, 1, 2, NAN, 4, NAN, 9, 9, 9, NAN],
    [-0.0, 0.0, -0.0, 0.0, 0.0, -0.0, 0.0, 0.0, -0.0, 0.0],
    [-INF, -INF, -INF, -INF, -INF, -INF, -INF, -INF, -INF, -5],
]


@pytest.mark.parametrize("kind", ["max", "min"])
@pytest.mark.parametrize("size", [5, 6, 8, 10])
@pytest.mark.parametrize("dtype", ["f32", "i32"])
def test_the_first_of_ties_and_of_nan(dtype: str, size: int, kind: str) -> None:
    before = nest(size, dtype, kind)
    made = rewritten(before)
    assert "online" not in inside(made)
    for half in (ROWS[:3], ROWS[3:]):
        x = np.array(half, np.float32)[:, :size]
        x = -x if kind == "min" else x
        if dtype == "i32":
            x = np.nan_to_num(x, nan=7, posinf=2**31 - 1, neginf=-(2.0**31)).astype(np.int64)
            x = np.clip(x, -(2**31), 2**31 - 1).astype(np.int32)
        (got,) = results(around(made), [x])
        want = x.argmax(1) if kind == "max" else x.argmin(1)
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("broadcast(-inf:f32)", "broadcast(0.0:f32)"),  # a value that no element has
        ("broadcast(2147483647:i32)", "broadcast(0:i32)"),  # a position before the loop
        ("max(%acc, %load)", "min(%acc, %load)"),
        ("eq(%load, ", "le(%load, "),  # other elements than the best ones
        ("select(%or_1, %acc_1, 8:i32)", "select(%or_1, %acc_1, 9:i32)"),
        ("8:i32", "5:i32"),  # the end is among the positions
        ("add(%mul, %iota)", "sub(%iota, %mul)"),  # positions fall
    ],
)
def test_what_stays(old: str, new: str) -> None:
    before = altered(nest(), old, new)
    assert rewritten(before) is before
