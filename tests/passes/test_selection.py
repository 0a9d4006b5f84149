"""selection: the first elements of sorted rows are found by reductions, in the order of a sort."""

from __future__ import annotations

import numpy as np
import pytest

from stack.ir.func import Func
from stack.ir.parser import parse
from stack.ir.types import DTYPES
from stack.rewrite import Pipeline
from stack.target import as_gpu, load

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


@pytest.mark.parametrize(("axis", "count"), [(1, 1), (1, 6), (1, 13), (0, 3)])
@pytest.mark.parametrize("down", [True, False])
@pytest.mark.parametrize("dtype", ["f64", "f32", "f16", "bf16"])
def test_floats_are_in_the_order_of_a_sort(axis: int, count: int, down: bool, dtype: str) -> None:
    """Zeros of both signs are equal and keep their order and sign, nan of both signs is largest."""
    func = before(count, axis, dtype, down=down)
    made = selected(func)
    assert not any(n.op == "sort" for n in made.nodes)
    kind = np.dtype(DTYPES[dtype].numpy)  # bf16 in 32 bits
    few = [np.nan, -np.nan, np.inf, -np.inf, 0.0, -0.0, 2.0**-14, -1.5, 2.0**15]
    rng = np.random.default_rng()
    for x in (rng.choice(np.array(few, kind), (5, 13)), rng.standard_normal((5, 13)).astype(kind)):
        for got, want in zip(made.interpret(x), func.interpret(x), strict=True):
            np.testing.assert_array_equal(got, want)
            if got.dtype == kind:
                np.testing.assert_array_equal(np.signbit(got), np.signbit(want))


def test_places_of_a_single_row_are_a_view() -> None:
    text = str(before(3, dtype="f32")).replace("[5, ", "[1, ")
    text = text.replace("broadcast(%iota) {axes=[1]}", "reshape(%iota)").replace("[5", "[1")
    func = Pipeline("canonicalize").run(parse(text)).func
    made = selected(func)
    assert any(n.op == "sort" for n in func.nodes) and not any(n.op == "sort" for n in made.nodes)
    x = np.random.default_rng().standard_normal((1, 13)).astype(np.float32)
    for got, want in zip(made.interpret(x), func.interpret(x), strict=True):
        np.testing.assert_array_equal(got, want)


def test_rows_stay_in_the_cache_of_a_cpu() -> None:
    cpu = load("avx2")
    most = cpu.kept_bytes // 4
    for size, longest in ((most, most), (2 * most, 256)):
        made = Pipeline("selection{loops=cpu}").run(before(3, size=size), target=cpu).func
        sizes = [n.args[0].shape[n.attrs["axes"][0]] for n in made.nodes if n.op == "reduce"]
        assert max(sizes) == longest


@pytest.mark.parametrize(("count", "size"), [(1, 1 << 14), (6, 3 * 4099), (16, 128256)])
@pytest.mark.parametrize("down", [True, False])
@pytest.mark.parametrize("dtype", ["i32", "f32"])
def test_long_rows_are_cut_into_parts(count: int, size: int, down: bool, dtype: str) -> None:
    """Equal elements in several parts keep the order of their places."""
    func = before(count, size=size, dtype=dtype, down=down)
    made = selected(func)
    assert not any(n.op == "sort" for n in made.nodes)
    held = as_gpu(None).rows
    for node in (n for n in made.nodes if n.op == "reduce"):
        axis = node.attrs["axes"][0]
        assert node.args[0].shape[axis] <= held.warps * held.warp_elements
    rng, kind = np.random.default_rng(), np.dtype(DTYPES[dtype].numpy)
    equal, few = np.zeros((5, size), kind), rng.integers(-3, 3, (5, size)).astype(kind)
    for x in (equal, few, (rng.standard_normal((5, size)) * 1e5).astype(kind)):
        for got, want in zip(made.interpret(x), func.interpret(x), strict=True):
            np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize(
    "func", [before(17, size=40), before(3, dtype="bool"), before(3, size=8209)],
    ids=["many", "truth values", "long rows of a prime size"],
)  # fmt: skip
def test_other_sorts_stay(func: Func) -> None:
    assert selected(func) is func


def test_a_sort_that_is_read_as_a_whole_stays() -> None:
    text = str(before(3)).replace("return %first, %at", "return %first, %order")
    func = parse(text.replace("i32[5, 3]) at", "i32[5, 13]) at"))
    assert selected(func) is func
