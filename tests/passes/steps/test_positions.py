"""Indices that are affine in positions: axes of a tile are apart, and nothing wraps around."""

from __future__ import annotations

import pytest

from stack.ir import Node
from stack.ir.builder import constant, make, param
from stack.ir.traits import is_positions
from stack.ir.types import DTYPES, TensorType
from stack.passes.steps.affine import difference, held, place_of
from stack.passes.steps.bounds import bounds_of

I8, I32, I64, U32 = (DTYPES[name] for name in ("i8", "i32", "i64", "u32"))
VAR = Node("var", (), {"name": "r", "extent": 8}, TensorType(I32, ()))


def along(axis: int, size: int = 4, count: int = 1) -> Node:
    """The positions of a tile of size x size along one axis, times a number."""
    hint = TensorType(I32, (size,), "tile")
    one = make("iota", (), {"axis": 0}, hint=hint)
    if count != 1:
        one = make("mul", (one, constant(count, I32)))
    return make("broadcast", (one,), {"axes": (axis,)}, hint=TensorType(I32, (size, size), "tile"))


def cast(node: Node, name: str) -> Node:
    """A conversion."""
    return make("cast", (node,), hint=node.tensor.with_dtype(DTYPES[name]))


def test_axes_of_a_tile_are_apart() -> None:
    """Rows and columns have the same iota, which is broadcast along different axes."""
    place = place_of(make("sub", (along(0), along(1))))
    assert place is not None and place.ends() == (-3, 3)
    assert sorted(int(t.attrs["axis"]) for t in place.terms) == [0, 1]
    assert all(map(is_positions, place.terms))


def test_the_same_axis_cancels() -> None:
    place = place_of(make("sub", (along(0, count=3), along(0, count=2))))
    assert place is not None and place.ends() == (0, 3) and len(place.terms) == 1
    assert place_of(make("sub", (along(1), along(1)))) == place_of(constant(0, I32))


def test_a_comparison_of_axes_is_not_constant() -> None:
    assert held(make("gt", (along(0), along(1)))) is None
    assert held(make("gt", (along(0), along(0)))) is False
    assert held(make("ge", (along(0), along(0)))) is True


@pytest.mark.parametrize("names", [("i64",), ("i8",), ("i8", "i32"), ("i16", "i64", "i32")])
def test_conversions_that_keep_all_values(names: tuple[str, ...]) -> None:
    node = along(0, count=5)
    for name in names:
        node = cast(node, name)
    place = place_of(node, casts=True)
    assert place == place_of(along(0, count=5))
    assert place_of(node) != place


@pytest.mark.parametrize("names", [("i8",), ("i8", "i32"), ("u8",), ("i32", "u32"), ("u32", "i32")])
def test_conversions_that_may_not(names: tuple[str, ...]) -> None:
    """-60 to 60 steps of 5: positions down to -180."""
    node = make("sub", (along(0, count=5), constant(195, I32)))
    for name in names:
        node = cast(node, name)
    place = place_of(node, casts=True)
    assert place is not None and not any(map(is_positions, place.terms))


def block_of(extent: int, size: int, name: str) -> tuple[Node, Node]:
    """A loop variable of 64 bits, and the number of its block of `size` in another type."""
    var = Node("var", (), {"name": "r", "extent": extent}, TensorType(I64, ()))
    first = make("mul", (var, constant(64, I64)))
    return var, cast(make("div", (first, constant(size, I64))), name)


def limit(dtype: str) -> Node:
    type_ = TensorType(DTYPES[dtype], ())
    return make("load", (param("end", TensorType(type_.dtype, (), "global")),), hint=type_)


@pytest.mark.parametrize(("size", "step"), [(64, 1), (128, 64)])
def test_a_block_number_that_becomes_narrow_is_limited_by_data(size: int, step: int) -> None:
    """Kernels of many elements have indices of 64 bits; limits of blocks have 32."""
    var, block = block_of(256, size, "i32")
    (bound,) = bounds_of(make("lt", (block, limit("i32"))), False, var).found
    assert bound.step == step


def test_a_block_number_that_may_wrap_around_is_not() -> None:
    var, block = block_of(256, 64, "i8")
    assert not bounds_of(make("lt", (block, limit("i8"))), False, var).found
    var, block = block_of(1 << 40, 64, "i32")
    assert not bounds_of(make("lt", (block, limit("i32"))), False, var).found


@pytest.mark.parametrize(
    ("op", "dtype", "number"),
    [("mul", I32, 1 << 30), ("add", I32, (1 << 31) - 4), ("sub", U32, 1), ("mul", I8, 40)],
)
def test_what_wraps_around_is_no_position(op: str, dtype: object, number: int) -> None:
    assert dtype in (I8, I32, U32)
    var = Node("var", (), {"name": "r", "extent": 8}, TensorType(dtype, ()))  # pyright: ignore
    node = make(op, (var, constant(number, var.dtype)))
    place = place_of(node)
    assert place is not None and list(place.terms) == [node]
    assert difference(make("gt", (node, var))) is not None
    assert held(make("gt", (node, var))) is None


def test_what_fits_is_a_position() -> None:
    for count in (1 << 28, -(1 << 28)):
        place = place_of(make("mul", (VAR, constant(count, I32))))
        assert place is not None and dict(place.terms) == {VAR: count}
    assert (
        held(make("lt", (make("mul", (VAR, constant(1 << 28, I32))), constant(-1, I32)))) is False
    )
