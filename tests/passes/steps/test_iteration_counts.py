"""Rule `iteration_counts` of step rewrite: masked counts in a loop with states of each lane."""

from __future__ import annotations

import numpy as np
import pytest
from nest_cases import altered, around, inside, results

from stack.ir import Node, parse, verify
from stack.passes.policies.step_lowering import plain_nest
from stack.passes.steps.primitives import parse_steps, run_steps
from stack.rewrite import Pipeline
from stack.target import as_gpu

PROGRAM = """func @f(%x: f32[3, {size}]) -> (f32[3]) at tensor {{
  %s = reduce(%x) {{axes=[1], kind="sum"}} : f32[3]
  %n = div(%s, {size}.0:f32) : f32[3]
  %m = broadcast(%n) {{axes=[0]}} : f32[3, {size}]
  %d = sub(%x, %m) : f32[3, {size}]
  %q = mul(%d, %d) : f32[3, {size}]
  %y = reduce(%q) {{axes=[1], kind="sum"}} : f32[3]
  return %y
}}
"""
LANES = "split r 4; reorder r.0 r.1; block r.1; vectorize r.1"


BEFORE = """\
    %max_2 = max(%acc_1, 1.0:f32) : f32<4>
    %div_2 = div(%acc, %max_2) : f32<4>
    %max_3 = max(%add_3, 1.0:f32) : f32<4>
    %div_3 = div(%add_2, %max_3) : f32<4>
    %sub_1 = sub(%div_2, %div_3) : f32<4>
    %mul_3 = mul(%sub_1, %sub_1) : f32<4>
    %mul_4 = mul(%acc_1, %mul_3) : f32<4>
    %add_4 = add(%acc_2, %mul_4) : f32<4>
    %div_4 = div(%add_2, %add_3) : f32<4>
    %sub_2 = sub(%load, %div_4) : f32<4>
    %mul_5 = mul(%sub_2, %sub_2) : f32<4>
    %select_2 = select(%lt, %mul_5, 0.0:f32) : f32<4>
    %add_5 = add(%add_4, %select_2) : f32<4>
    return %add_2, %add_3, %add_5
"""
EXPECTED = """\
    %add_2 = add(%acc, %load) : f32<4>
    %select = select(%lt, %add_2, %acc) : f32<4>
    %select_1 = select(%lt, 1.0:f32, 0.0:f32) : f32<4>
    %add_3 = add(%acc_1, %select_1) : f32<4>
    %cast = cast(%r.0) : f32[]
    %broadcast_1 = broadcast(%cast) {axes=[]} : f32<4>
    %max_2 = max(%cast, 1.0:f32) : f32[]
    %broadcast_2 = broadcast(%max_2) {axes=[]} : f32<4>
    %div_2 = div(%acc, %broadcast_2) : f32<4>
    %add_4 = add(%cast, 1.0:f32) : f32[]
    %broadcast_3 = broadcast(%add_4) {axes=[]} : f32<4>
    %div_3 = div(%add_2, %broadcast_3) : f32<4>
    %sub_1 = sub(%div_2, %div_3) : f32<4>
    %mul_3 = mul(%sub_1, %sub_1) : f32<4>
    %mul_4 = mul(%broadcast_1, %mul_3) : f32<4>
    %add_5 = add(%acc_2, %mul_4) : f32<4>
    %sub_2 = sub(%load, %div_3) : f32<4>
    %mul_5 = mul(%sub_2, %sub_2) : f32<4>
    %add_6 = add(%add_5, %mul_5) : f32<4>
    %select_2 = select(%lt, %add_6, %acc_2) : f32<4>
    return %select, %add_3, %select_2
"""
WHOLE = """\
    %cast = cast(%r.0) : f32[]
    %max_2 = max(%cast, 1.0:f32) : f32[]
    %div_2 = div(%acc, %max_2) : f32<4>
    %add_3 = add(%cast, 1.0:f32) : f32[]
    %div_3 = div(%add_1, %add_3) : f32<4>
"""


def nest(size: int) -> Node:
    """The loop nest of the squared deviations of three rows, with states in lanes."""
    text = PROGRAM.format(size=size)
    func = Pipeline("stream{min_axis=2,loops=blocks}").run(parse(text), target=as_gpu(None)).func
    (stream,) = (n for n in func.nodes if n.op == "stream")
    return run_steps(plain_nest(stream, as_gpu(None)), parse_steps(LANES))


def rewritten(kernel: Node) -> Node:
    made = run_steps(kernel, parse_steps("rewrite iteration_counts"))
    verify(around(made))
    return made


def test_before_and_expected() -> None:
    before = nest(10)
    assert BEFORE in inside(before)
    made = inside(rewritten(before))
    assert EXPECTED in made
    assert "online" not in made  # a later iteration is after an earlier one


def test_a_count_without_a_mask() -> None:
    made = inside(rewritten(nest(8)))
    assert WHOLE in made
    assert "select" not in made


@pytest.mark.parametrize("size", [5, 8, 9, 10, 39])
def test_the_result_is_the_same(size: int, rng: np.random.Generator) -> None:
    before = nest(size)
    made = rewritten(before)
    assert made is not before
    x = (rng.standard_normal((3, size)) + 10).astype(np.float32)
    (want,), (got,) = results(around(before), [x]), results(around(made), [x])
    np.testing.assert_array_equal(got, want)
    exact = x.astype(np.float64).var(1) * size
    np.testing.assert_allclose(got, exact, rtol=1e-5)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("lt(%add_1, 10:i32)", "gt(%add_1, 10:i32)"),  # the first iterations are hidden
        ("add(%mul_2, %iota)", "sub(%iota, %mul_2)"),  # positions fall
        ("select(%lt, 1.0:f32, 0.0:f32)", "select(%lt, 2.0:f32, 0.0:f32)"),  # no count
        ("select(%lt, 1.0:f32, 0.0:f32)", "select(%lt, 1.0:f32, 1.0:f32)"),
        ("%broadcast = broadcast(0.0:f32)", "%broadcast = broadcast(1.0:f32)"),  # a start
    ],
)
def test_what_stays(old: str, new: str) -> None:
    before = altered(nest(10), old, new)
    assert rewritten(before) is before
