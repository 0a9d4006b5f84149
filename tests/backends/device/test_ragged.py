"""Products of rows in groups as library steps: masked, where torch has no kernel of its own."""

from __future__ import annotations

import numpy as np
import pytest
from test_programs import check, func_of

from stack.ir import Builder, Node

SPECS = {
    "s! k, g^ n k, g^ -> n s!": (("f32", 9, 4), ("f32", 3, 5, 4)),
    "k s!, s! n, g^ -> n g^ k": (("f32", 4, 9), ("f32", 9, 5)),
}


@pytest.mark.parametrize("rule", SPECS)
def test_rows_in_groups(rule: str) -> None:
    def build(b: Builder, x: Node, y: Node, ends: Node) -> Node:
        return b.exp(b.ragged_dot(x, y, ends, rule=rule))

    rng = np.random.default_rng(0)
    left, right = (rng.normal(size=s[1:]).astype("f") for s in SPECS[rule])
    func = func_of(build, [*SPECS[rule], ("i64", 3)])
    check(func, [left, right, np.array([2, 2, 7])])
