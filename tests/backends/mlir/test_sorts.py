"""Sorts on the CPU: a library's, stable, of all elements or of the first few."""

from __future__ import annotations

import functools
from itertools import product
from typing import Any

import numpy as np
import pytest

from stack.ir.builder import Builder, param
from stack.ir.types import DTYPES, TensorType
from stack.run.compile import compile_func

torch = pytest.importorskip("torch")
pytest.importorskip("torch_mlir")

import stack  # noqa: E402

KINDS = ("float32", "bfloat16", "float16", "float64", "int64", "int32", "int8", "uint8")
SHAPES = (((6, 64), 1), ((64, 5), 0), ((3, 50, 7), 1), ((40,), 0), ((2, 2000), 1), ((9, 5), 1))
LARGER = (*SHAPES, ((1,), 0), ((3, 70000), 1), ((60, 1009, 2), 1))
Shape = tuple[int, ...]


def drawn(kind: str, shape: tuple[int, ...]) -> Any:
    """Many equal elements; of floats also nan, both zeros and infinities."""
    x = (torch.randn(shape) * 6).round()
    dtype = getattr(torch, kind)
    if dtype.is_floating_point:
        for value, part in ((torch.nan, 0.1), (-0.0, 0.2), (torch.inf, 0.05), (-torch.inf, 0.05)):
            x = torch.where(torch.rand(shape) < part, value, x)
    return x.to(dtype)


@pytest.mark.each
@pytest.mark.parametrize(("kind", "largest", "shaped"), product(KINDS, (False, True), SHAPES))
def test_topk_keeps_the_order_of_equals(
    kind: str, largest: bool, shaped: tuple[Shape, int]
) -> None:
    """If only some of equal elements are selected, they are the first, as in a stable sort."""
    shape, axis = shaped
    for count in (1, 3, shape[axis]):
        x = drawn(kind, shape)
        topk = functools.partial(torch.topk, k=count, dim=axis, largest=largest)
        compiled = stack.compile(topk, x, backend="mlir")
        values, places = compiled(x)
        expected = torch.sort(x, dim=axis, descending=largest, stable=True).indices
        assert torch.equal(places, expected.narrow(axis, 0, count))
        found = torch.gather(x, axis, places)
        torch.testing.assert_close(values, found, rtol=0, atol=0, equal_nan=True)
        assert compiled.run.coverage["fallback"] == 0


def test_of_rows_of_which_some_are_cut() -> None:
    """Not contiguous, and equal elements at the border in one row alone."""
    x = torch.arange(80.0).reshape(20, 4).t()
    x[2] = 7.0
    values, places = stack.compile(lambda x: x.topk(3, 1), x, backend="mlir")(x)
    assert places.tolist() == [[19, 18, 17], [19, 18, 17], [0, 1, 2], [19, 18, 17]]
    assert values[2].tolist() == [7.0, 7.0, 7.0]


@pytest.mark.parametrize("name", ["u8", "u16", "u32", "u64"])
@pytest.mark.parametrize("first", [None, 2, 4])
def test_unsigned_sorts(name: str, first: int | None) -> None:
    """The top bit counts."""
    b, dtype = Builder(), DTYPES[name]
    x = param("x", TensorType(dtype, (3, 9)))
    kept = {} if first is None else {"first": first}
    made = b.item(b.sort(x, axis=1, num_keys=1, descending=True, **kept), index=0)
    array = np.random.default_rng(0).integers(0, np.iinfo(dtype.numpy).max, (3, 9), dtype.numpy)
    array[:, 3] = np.iinfo(dtype.numpy).max
    (got,) = compile_func(b.func("main", [x], [made]), "mlir").run([array])
    np.testing.assert_array_equal(got, np.sort(array, 1)[:, ::-1][:, :first])


@pytest.mark.every(5)
@pytest.mark.parametrize(
    ("kind", "descending", "threads", "shaped"),
    product(KINDS, (False, True), (1, 2), LARGER),
)
def test_equals_keep_their_order(
    kind: str, descending: bool, threads: int, shaped: tuple[Shape, int]
) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        shape, axis = shaped
        x = drawn(kind, shape)
        sort = functools.partial(torch.sort, dim=axis, descending=descending, stable=True)
        values, places = stack.compile(lambda x: tuple(sort(x)), x)(x)
        wanted = sort(x)
        assert torch.equal(places, wanted.indices)
        torch.testing.assert_close(values, wanted.values, rtol=0, atol=0, equal_nan=True)
    finally:
        torch.set_num_threads(before)


@pytest.mark.each
@pytest.mark.parametrize(("kind", "shaped"), product(KINDS, LARGER))
def test_one_place_of_an_order_is_the_first_of_its_equals(
    kind: str, shaped: tuple[Shape, int]
) -> None:
    """Selected, and not sorted: at both ends and in the middle."""
    shape, axis = shaped
    x = drawn(kind, shape)
    size = shape[axis]
    for number in {1, size // 2 + 1, size}:
        kth = functools.partial(torch.kthvalue, k=number, dim=axis)
        values, places = stack.compile(lambda x, kth=kth: tuple(kth(x)), x)(x)
        order = torch.sort(x, dim=axis, stable=True).indices.select(axis, number - 1)
        assert torch.equal(places, order)
        found = torch.gather(x, axis, places.unsqueeze(axis)).squeeze(axis)
        torch.testing.assert_close(values, found, rtol=0, atol=0, equal_nan=True)


@pytest.mark.each
@pytest.mark.parametrize(("kind", "shaped"), product(KINDS, SHAPES))
def test_medians(kind: str, shaped: tuple[Shape, int]) -> None:
    """A nan is the median, the first of several."""
    shape, axis = shaped
    x = drawn(kind, shape)
    if x.dtype.is_floating_point:
        x[(0,) * x.dim()] = torch.nan
    values, places = stack.compile(lambda x: tuple(x.median(axis)), x)(x)
    torch.testing.assert_close(values, x.median(axis).values, rtol=0, atol=0, equal_nan=True)
    nan = (x != x).long()
    middle = torch.sort(x, dim=axis, stable=True).indices.select(axis, (shape[axis] - 1) // 2)
    assert torch.equal(places, torch.where(nan.any(axis), nan.argmax(axis), middle))
    whole = stack.compile(torch.median, x)(x)
    torch.testing.assert_close(whole, x.median(), rtol=0, atol=0, equal_nan=True)
