"""Rule `addends_first` of step rewrite: two addends of a carried sum are added to each other."""

from __future__ import annotations

import numpy as np
import pytest
from nest_cases import altered, around, inside, results
from test_iteration_counts import nest

from stack.ir import Node, verify
from stack.passes.steps.primitives import parse_steps, run_steps

BEFORE = """\
    %add_3 = add(%acc_2, %mul_4) : f32<4>
    %div_4 = div(%add_1, %add_2) : f32<4>
    %sub_2 = sub(%load, %div_4) : f32<4>
    %mul_5 = mul(%sub_2, %sub_2) : f32<4>
    %add_4 = add(%add_3, %mul_5) : f32<4>
"""
EXPECTED = """\
    %sub_2 = sub(%load, %div_4) : f32<4>
    %mul_5 = mul(%sub_2, %sub_2) : f32<4>
    %add_3 = add(%mul_4, %mul_5) : f32<4>
    %add_4 = add(%acc_2, %add_3) : f32<4>
"""
MASKED = """\
    %add_5 = add(%mul_4, %mul_5) : f32<4>
    %add_6 = add(%acc_2, %add_5) : f32<4>
    %select_2 = select(%lt, %add_6, %acc_2) : f32<4>
"""


def rewritten(kernel: Node, rules: str = "rewrite addends_first") -> Node:
    made = run_steps(kernel, parse_steps(rules))
    verify(around(made))
    return made


def test_before_and_expected() -> None:
    before = nest(8)
    assert BEFORE in inside(before)
    made = inside(rewritten(before))
    assert EXPECTED in made
    assert "online" not in made


def test_masked_sums() -> None:
    made = rewritten(nest(10), "rewrite iteration_counts; rewrite addends_first")
    assert MASKED in inside(made)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("add(%acc_2, %mul_4)", "sub(%acc_2, %mul_4)"),
        ("add(%acc_2, %mul_4)", "add(%acc, %mul_4)"),  # another carried value
        ("add(%add_3, %mul_5)", "add(%add_3, %acc_2)"),  # an addend that reads the sum
        ("add(%add_3, %mul_5)", "mul(%add_3, %mul_5)"),
    ],
)
def test_what_stays(old: str, new: str) -> None:
    before = altered(nest(8), old, new)
    assert rewritten(before) is before


def test_small_addends_are_not_lost(rng: np.random.Generator) -> None:
    """The result was below the exact one by two millionths in each row."""
    x = rng.standard_normal((3, 8192)).astype(np.float32)
    before = nest(8192)
    exact = x.astype(np.float64).var(1) * 8192
    (old,), (new,) = (results(around(k), [x]) for k in (before, rewritten(before)))
    off, least = (np.abs(found / exact - 1).max() for found in (old, new))
    assert least < 1e-6 < off, (off, least)
