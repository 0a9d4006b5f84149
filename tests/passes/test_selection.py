"""selection: the first elements of sorted rows are found by reductions, in the order of a sort."""

from __future__ import annotations

import numpy as np
import pytest

from stack.ir.func import Func
from stack.ir.parser import parse
from stack.rewrite import Pipeline
from stack.target import as_gpu

BEFORE = """
func @f(%x: {dtype}[{rows}, {size}]) -> ({dtype}[{shape}], i32[{shape}]) at tensor {{
  %iota = iota() {{axis=0}} : i32[{length}]
  %places = broadcast(%iota) {{axes=[{axis}]}} : i32[{rows}, {size}]
  %sort = sort(%x, %places) {{axis={axis}, descending={descending}, num_keys=1}} : ({dtype}[{rows}, {size}], i32[{rows}, {size}])
  %values = item(%sort) {{index=0}} : {dtype}[{rows}, {size}]
  %order = item(%sort) {{index=1}} : i32[{rows}, {size}]
  %first = slice(%values) {{start=[0, 0], limit=[{shape}], step=[1, 1]}} : {dtype}[{shape}]
  %at = slice(%order) {{start=[0, 0], limit=[{shape}], step=[1, 1]}} : i32[{shape}]
  return %first, %at
}}
"""  # noqa: E501


def before(
    count: int, axis: int = 1, dtype: str = "i32", size: int = 13, down: bool = True
) -> Func:
    rows = 5
    shape = f"{rows}, {count}" if axis else f"{count}, {size}"
    length = size if axis else rows
    text = BEFORE.format(
        dtype=dtype, rows=rows, size=size, shape=shape, axis=axis, length=length,
        descending=str(down).lower(),
    )  # fmt: skip
    return parse(text)


def selected(func: Func) -> Func:
    return Pipeline("selection").run(func, target=as_gpu(None)).func


@pytest.mark.parametrize(("axis", "count"), [(1, 1), (1, 6), (1, 13), (0, 3)])
@pytest.mark.parametrize("down", [True, False])
@pytest.mark.parametrize("dtype", ["i32", "u32", "i64"])
def test_equal_and_extreme_elements(axis: int, count: int, down: bool, dtype: str) -> None:
    func = before(count, axis, dtype, down=down)
    made = selected(func)
    assert not any(n.op == "sort" for n in made.nodes)
    rng, kind = np.random.default_rng(), np.dtype({"i": "int", "u": "uint"}[dtype[0]] + dtype[1:])
    limits = np.iinfo(kind)
    few = np.array([limits.min, limits.min + 1, 0, 7, limits.max], kind)
    for x in (rng.choice(few, (5, 13)), rng.integers(limits.min, limits.max, (5, 13), kind)):
        for got, want in zip(made.interpret(x), func.interpret(x), strict=True):
            np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize(
    "func", [before(17, size=40), before(3, dtype="f32"), before(3, size=1 << 14)],
    ids=["many", "floats", "long rows"],
)  # fmt: skip
def test_other_sorts_stay(func: Func) -> None:
    assert selected(func) is func


def test_a_sort_that_is_read_as_a_whole_stays() -> None:
    text = str(before(3)).replace("return %first, %at", "return %first, %order")
    func = parse(text.replace("i32[5, 3]) at", "i32[5, 13]) at"))
    assert selected(func) is func
