"""An axis without a mark in the rule of an operator can be split: parts give parts of results."""

from __future__ import annotations

import numpy as np
import pytest
from hosted_cases import CASES, Case

from stack.ir.axes import Operand, Rule

Arrays = list[np.ndarray]


def split_axes(rule: Rule) -> list[str]:
    """Axes of results that are the first of their dim, in every value, and have no mark."""
    sides = (*rule.inputs, *rule.outputs)
    minor = {n for side in sides for axis in side for n in axis.names[1:]}
    marked = {n for side in sides for axis in side if axis.mark for n in axis.names}
    kept = [n for side in rule.outputs for axis in side for n in axis.names]
    read = {n for side in rule.inputs for axis in side for n in axis.names}
    return [n for n in dict.fromkeys(kept) if n in read and n not in minor | marked]


def parts(arrays: Arrays, sides: tuple[Operand, ...], name: str, count: int) -> list[Arrays]:
    """The parts of some arrays along an axis; arrays without it are in every part."""
    found: list[Arrays] = [[] for _ in range(count)]
    for x, side in zip(arrays, sides, strict=True):
        dims = [i for i, axis in enumerate(side) if name in axis.names]
        cut = np.split(x, count, dims[0]) if dims else [x] * count
        for own, piece in zip(found, cut, strict=True):
            own.append(piece)
    return found


def results(case: Case, arrays: Arrays) -> Arrays:
    made = case.op(*arrays, **case.attributes)
    return list(made) if isinstance(made, tuple) else [made]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_unmarked_axes_can_be_split(case: Case) -> None:
    arrays = case.arrays()
    rule = case.op.rule_for([x.ndim for x in arrays])
    sizes = rule.sizes([x.shape for x in arrays])
    whole = results(case, arrays)
    for name in split_axes(rule):
        size = int(str(sizes[name]))
        count = next((n for n in range(2, size + 1) if size % n == 0), 0)
        if not count:
            continue
        found = [results(case, own) for own in parts(arrays, rule.inputs, name, count)]
        for expected, pieces in zip(parts(whole, rule.outputs, name, count), found, strict=True):
            for a, b in zip(expected, pieces, strict=True):
                np.testing.assert_allclose(b, a, rtol=1e-9, atol=1e-12, err_msg=name)
