"""Rule `mean_shifts` of step rewrite: the shift of a running mean by one element."""

from __future__ import annotations

import numpy as np
import pytest
from nest_cases import altered, around, inside, results
from test_iteration_counts import EXPECTED as BEFORE
from test_iteration_counts import nest

from stack.ir import Node, verify
from stack.passes.steps.primitives import parse_steps, run_steps

EXPECTED = """\
    %cast = cast(%r.0) : f32[]
    %add_4 = add(%cast, 1.0:f32) : f32[]
    %broadcast_1 = broadcast(%add_4) {axes=[]} : f32<4>
    %div_2 = div(%add_2, %broadcast_1) : f32<4>
    %sub_1 = sub(%load, %div_2) : f32<4>
    %mul_3 = mul(%sub_1, %sub_1) : f32<4>
    %max_2 = max(%cast, 1.0:f32) : f32[]
    %broadcast_2 = broadcast(%max_2) {axes=[]} : f32<4>
    %div_3 = div(%mul_3, %broadcast_2) : f32<4>
    %add_5 = add(%acc_2, %div_3) : f32<4>
    %add_6 = add(%add_5, %mul_3) : f32<4>
    %select_2 = select(%lt, %add_6, %acc_2) : f32<4>
    return %select, %add_3, %select_2
"""


def counted(size: int) -> Node:
    """The loop over the elements of three rows, after the rewrite of the count."""
    return run_steps(nest(size), parse_steps("rewrite iteration_counts"))


def rewritten(kernel: Node) -> Node:
    made = run_steps(kernel, parse_steps("rewrite mean_shifts"))
    verify(around(made))
    return made


def test_before_and_expected() -> None:
    before = counted(10)
    assert BEFORE in inside(before)
    assert EXPECTED in inside(rewritten(before))


@pytest.mark.parametrize("size", [8, 10, 39, 1000])
@pytest.mark.parametrize("mean", [0, 10, -1e4])
def test_the_result_is_as_near(size: int, mean: float) -> None:
    before = counted(size)
    made = rewritten(before)
    assert made is not before
    off: list[float] = []
    for kernel in (before, made):
        errors = []
        for seed in range(20):
            x = np.random.default_rng(seed).standard_normal((3, size)) + mean
            (found,) = results(around(kernel), [x.astype(np.float32)])
            exact = x.astype(np.float32).astype(np.float64).var(1) * size
            errors.append(found / exact - 1)
        off.append(float(np.sqrt(np.mean(np.square(errors)))))
    assert off[1] <= 2 * off[0], off


def test_infinities_and_nan() -> None:
    x = np.array([[np.inf] + [1] * 9, [1] * 9 + [np.nan], [3e38] * 10], np.float32)
    with np.errstate(all="ignore"):
        (found,) = results(around(rewritten(counted(10))), [x])
        (before,) = results(around(counted(10)), [x])
    np.testing.assert_array_equal(np.isnan(found), np.isnan(before))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("sub(%div_2, %div_3)", "add(%div_2, %div_3)"),
        ("add(%acc, %load)", "sub(%acc, %load)"),  # no element is added
        ("add(%cast, 1.0:f32)", "add(%cast, 2.0:f32)"),  # no count of one more element
        ("max(%cast, 1.0:f32)", "max(%cast, 2.0:f32)"),
        ("broadcast(%cast)", "broadcast(2.0:f32)"),  # another weight
        ("div(%acc, %broadcast_2)", "div(%acc_1, %broadcast_2)"),  # another sum
        ("%broadcast = broadcast(0.0:f32)", "%broadcast = broadcast(1.0:f32)"),  # a start
    ],
)
def test_what_stays(old: str, new: str) -> None:
    before = altered(counted(10), old, new)
    assert rewritten(before) is before
