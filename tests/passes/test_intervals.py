"""Bounds of conditions on blocks of places, against what their elements are."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from stack.ir import Builder, Node
from stack.ir.builder import param
from stack.ir.dim import symbol
from stack.ir.types import DTYPES, TensorType
from stack.passes.positions.intervals import BlockIntervals, BlockValue

SIDE = 8
SHAPES = ((2, 24, 16), (1, 19, 37), (2, 5, 8))
Make = Callable[[Builder, Node, Node, Node], Node]


def spread(b: Builder, node: Node, axes: tuple[int, ...], shape: tuple[int, ...]) -> Node:
    return b.broadcast(node, axes=axes, type=TensorType(node.dtype, shape))


def places(b: Builder, axis: int, like: Node) -> Node:
    return b.iota(axis=axis, type=TensorType(DTYPES["i64"], like.shape))


EXACT: dict[str, Make] = {
    "equal": lambda b, x, y, z: b.eq(x, y),
    "unequal": lambda b, x, y, z: b.ne(x, y),
    "not below": lambda b, x, y, z: b.ge(x, y),
    "above": lambda b, x, y, z: b.gt(x, y),
    "below": lambda b, x, y, z: b.lt(x, y),
    "at most": lambda b, x, y, z: b.le(x, y),
    "places": lambda b, x, y, z: b.gt(places(b, 2, x), places(b, 1, x)),
    "far places": lambda b, x, y, z: b.lt(b.sub(places(b, 1, x), places(b, 2, x)), 9),
    "given": lambda b, x, y, z: z,
    "not given": lambda b, x, y, z: b.not_(z),
    "floats": lambda b, x, y, z: b.le(
        b.cast(x, type=x.tensor.with_dtype(DTYPES["f32"])),
        b.cast(y, type=y.tensor.with_dtype(DTYPES["f32"])),
    ),
}
LOOSE: dict[str, Make] = {
    "or": lambda b, x, y, z: b.or_(b.ne(x, y), b.gt(places(b, 2, x), places(b, 1, x))),
    "and": lambda b, x, y, z: b.and_(b.le(x, y), z),
    "not or": lambda b, x, y, z: b.not_(b.or_(b.lt(x, y), b.not_(z))),
    "narrow": lambda b, x, y, z: b.eq(
        b.cast(x, type=x.tensor.with_dtype(DTYPES["i8"])),
        b.cast(y, type=y.tensor.with_dtype(DTYPES["i8"])),
    ),
    "select": lambda b, x, y, z: b.select(z, b.eq(x, y), b.lt(x, y)),
}


def check(
    make: Make, shape: tuple[int, int, int], rng: np.random.Generator, exact: bool
) -> BlockIntervals:
    batch, rows, columns = shape
    ids = DTYPES["i64"]
    x, y = (param(n, TensorType(ids, (batch, size))) for n, size in (("x", rows), ("y", columns)))
    z = param("z", TensorType(DTYPES["bool"], shape))
    b = Builder()
    condition = make(b, spread(b, x, (0, 1), shape), spread(b, y, (0, 2), shape), z)
    iter_vars = tuple(symbol(f"d{i}", 0, s - 1) for i, s in enumerate(shape))
    index = tuple(0 if s == 1 else m for s, m in zip(shape, iter_vars, strict=True))
    intervals = BlockIntervals(iter_vars, (1, 2), SIDE)
    axes = (0, 1, 2)
    parts = [BlockValue(intervals.spread(p, axes), axes) for p in intervals.span(condition, index)]
    found = [intervals.elements(p) if p.node.tensor.rank else p.node for p in parts]
    func = b.func("f", [x, y, z], [condition, *found])
    for in_order in (True, False):
        made = [rng.integers(0, 4, (batch, n)) for n in (rows, columns)]
        if in_order:
            made = [np.sort(m, axis=1) for m in made]
        given = np.kron(rng.random((batch, 5, 5)) < 0.5, np.ones((1, SIDE, SIDE))) > 0
        seen, low, high = func.interpret(*made, given[:, :rows, :columns].copy())
        assert (low <= seen).all()
        assert (seen <= high).all()
        if exact:
            for i in range(0, rows, SIDE):
                for j in range(0, columns, SIDE):
                    square = np.s_[:, i : i + SIDE, j : j + SIDE]
                    np.testing.assert_array_equal(low[square][:, 0, 0], seen[square].all((1, 2)))
                    np.testing.assert_array_equal(high[square][:, 0, 0], seen[square].any((1, 2)))
    return intervals


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", [n for n in EXACT if n not in ("equal", "unequal", "far places")])
def test_exact(name: str, shape: tuple[int, int, int], rng: np.random.Generator) -> None:
    check(EXACT[name], shape, rng, True)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", ["equal", "unequal", "far places", *LOOSE])
def test_bounds(name: str, shape: tuple[int, int, int], rng: np.random.Generator) -> None:
    check({**EXACT, **LOOSE}[name], shape, rng, False)


@pytest.mark.parametrize(
    ("name", "read"),
    [("equal", 24 + 16), ("places", 0), ("given", 24 * 16), ("floats", 24 * 16), ("or", 24 + 16)],
)
def test_only_what_no_rule_knows_is_read_element_by_element(
    name: str, read: int, rng: np.random.Generator
) -> None:
    assert check({**EXACT, **LOOSE}[name], (2, 24, 16), rng, False).read == 2 * read
