"""Masked loads that give the identity of a reduction: where a select is left out, and where not."""

from __future__ import annotations

import numpy as np
import pytest
from nest_cases import around, group_in, inside, results, wrong

from stack.passes.nest.emit import emit
from stack.passes.steps.primitives import parse_steps, run_steps

REDUCED = """func @f(%x: f32[3, 5]) -> (f32[AXIS]) at tensor {
  %f = fusion(%x) {kind="reduction", name="reduced"} : f32[AXIS] {(%p0: f32[3, 5])
    BODY
    %y = reduce(%v) {axes=[REDUCES], kind="KIND"} : f32[AXIS]
    return %y
  }
  return %f
}
"""
INPUTS = [np.array([[-3, np.nan, 2, -np.inf, 5], [-4, -1, -2, -5, -3], [0, 0, -1, np.inf, 1]])]

# name: body, kind, steps, whether a select is left, and the value that a masked element loads
CASES = {
    "a maximum": ("%v = neg(%p0) : f32[3, 5]", "max", "split r 4", True, "0.0"),
    "a maximum of a load": ("", "max", "split r 4", False, "-inf"),
    "a minimum of a load": ("", "min", "split i 2; split r 4", False, "inf"),
    "a sum of zeros": (
        "%a = abs(%p0) : f32[3, 5]\n%v = mul(%a, %p0) : f32[3, 5]", "sum", "split r 4", False, "0.0"
    ),
    "a sum of ones": ("%v = exp(%p0) : f32[3, 5]", "sum", "split r 4", True, "0.0"),
    "a sum of what may be no zero": (
        "%a = div(%p0, %p0) : f32[3, 5]\n%v = mul(%a, 2.0:f32) : f32[3, 5]",
        "sum",
        "split r 4",
        True,
        "0.0",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_what_a_masked_element_loads(name: str) -> None:
    body, kind, steps, selects, fill = CASES[name]
    text = REDUCED.replace("BODY", body).replace("KIND", kind)
    text = text.replace("AXIS", "3").replace("REDUCES", "1")
    group = group_in(text if body else text.replace("%v)", "%p0)"))
    nest = emit(group)
    made = run_steps(nest, parse_steps(steps))
    assert ("select" in inside(made)) == selects, inside(made)
    assert f"{fill}:f32) : f32[]" in inside(made)
    arrays = [x.astype(np.float32) for x in INPUTS]
    with np.errstate(all="ignore"):
        assert not wrong(made, arrays, results(around(nest), arrays), 0)


NESTED = """func @f(%x: f32[3, 4, 2, 5]) -> (f32[5]) at tensor {
  %f = fusion(%x) {kind="reduction", name="nested"} : f32[5] {(%p0: f32[3, 4, 2, 5])
    %v = exp(%p0) : f32[3, 4, 2, 5]
    %y = reduce(%v) {axes=[0, 1, 2], kind="sum"} : f32[5]
    return %y
  }
  return %f
}
"""


@pytest.mark.parametrize(("steps", "selects"), [("split r 2", 1), ("split r_1 3", 1), ("", 0)])
def test_loops_around_a_sum_do_not_select_it_again(steps: str, selects: int) -> None:
    nest = emit(group_in(NESTED))
    made = run_steps(nest, parse_steps(steps))
    assert inside(made).count("= select(") == selects, inside(made)
    arrays = [np.linspace(-2, 2, 120, dtype=np.float32).reshape(3, 4, 2, 5)]
    assert not wrong(made, arrays, results(around(nest), arrays), 1e-6)


PADDED = """func @f(%x: f32[3, 5]) -> (f32[3]) at tensor {
  %f = fusion(%x) {kind="reduction", name="padded"} : f32[3] {(%p0: f32[3, 5])
    %v = pad(%p0, 0.0:f32) {high=[0, 2], interior=[0, 0], low=[0, 0]} : f32[3, 7]
    %y = reduce(%v) {axes=[1], kind="max"} : f32[3]
    return %y
  }
  return %f
}
"""
TWICE = """func @f(%x: f32[3, 5]) -> (f32[3]) at tensor {
  %f = fusion(%x) {kind="reduction", name="twice"} : f32[3] {(%p0: f32[3, 5])
    %m = reduce(%p0) {axes=[1], kind="max"} : f32[3]
    %b = broadcast(%m) {axes=[0]} : f32[3, 5]
    %d = sub(%p0, %b) : f32[3, 5]
    %e = exp(%d) : f32[3, 5]
    %y = reduce(%e) {axes=[1], kind="sum"} : f32[3]
    return %y
  }
  return %f
}
"""


@pytest.mark.parametrize("text", [PADDED, TWICE], ids=["zeros of a pad", "a row read twice"])
def test_zeros_that_something_needs(text: str) -> None:
    nest = emit(group_in(text))
    made = run_steps(nest, parse_steps("split r 4"))
    assert "-inf:f32) : f32[]" in inside(made) and "select" in inside(made)
    assert not any(" = load(" in line and "-inf" in line for line in inside(made).splitlines())
    arrays = [-np.abs(np.nan_to_num(INPUTS[0], posinf=2, neginf=2)).astype(np.float32)]
    assert not wrong(made, arrays, results(around(nest), arrays), 1e-6)


def test_a_sum_of_integer_products_needs_no_select() -> None:
    body = "%w = cast(%p0) : i32[3, 5]\n%v = mul(%w, %w) : i32[3, 5]"
    text = REDUCED.replace("BODY", body).replace("KIND", "sum").replace("REDUCES", "1")
    text = text.replace("f32[3, 5]", "i8[3, 5]").replace("f32[AXIS]", "i32[3]")
    nest = emit(group_in(text))
    made = run_steps(nest, parse_steps("split r 4"))
    assert "select" not in inside(made)
    arrays = [np.arange(-7, 8, dtype=np.int8).reshape(3, 5)]
    assert not wrong(made, arrays, results(around(nest), arrays), 0)
