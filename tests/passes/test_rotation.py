"""Two slices of one value that a concat puts in the other order are read at a turned index."""

from __future__ import annotations

import numpy as np
import pytest

from stack.ir import Builder, Func, Node, param, tensor
from stack.passes.tile import Tile
from stack.rewrite.log import Log


def part(b: Builder, x: Node, axis: int, start: int, limit: int) -> Node:
    shape = tuple(map(int, x.shape))  # pyright: ignore[reportArgumentType]
    first, last = [0] * len(shape), list(shape)
    first[axis], last[axis] = start, limit
    return b.slice(x, start=tuple(first), limit=tuple(last), step=(1,) * len(shape))


def moved(axis: int, pieces: list[tuple[int, int]], twice: bool = False) -> Func:
    """exp of a value that is put together from pieces of another."""
    b = Builder()
    x = param("x", tensor("f32", 4, 6, 16))
    p = param("p0", x.type)
    value = b.exp(p)
    for at in (axis, 1) if twice else (axis,):
        cut = pieces if at == axis else [(2, 6), (0, 2)]
        value = b.concat(*(part(b, value, at, *piece) for piece in cut), axis=at)
    group = Builder().fusion(x, kind="loop", name="moved", blocks=(b.block([p], [value]),))
    return Builder().func("main", [x], [group])


@pytest.mark.parametrize(
    ("axis", "pieces", "twice", "turns"),
    [
        (0, [(1, 4), (0, 1)], False, True),
        (1, [(5, 6), (0, 5)], False, True),
        (0, [(3, 4), (0, 3)], True, True),
        (0, [(0, 1), (1, 4)], False, False),  # in order
        (0, [(2, 4), (0, 2), (1, 3)], False, False),
        (1, [(3, 6), (0, 2)], False, False),  # a gap
        (1, [(3, 6), (1, 4)], False, False),
        (2, [(5, 16), (0, 5)], False, False),  # lanes are read as they lie
    ],
)
def test_rotations(
    axis: int, pieces: list[tuple[int, int]], twice: bool, turns: bool, rng: np.random.Generator
) -> None:
    func = moved(axis, pieces, twice)
    x = rng.normal(size=(4, 6, 16)).astype(np.float32)
    tiled = Tile().run(func, Log())
    assert [n.op for n in tiled.nodes] == ["kernel"]
    np.testing.assert_allclose(tiled.interpret(x), func.interpret(x), rtol=1e-6)
    text = str(tiled)
    assert ("rem(" in text) == turns
    assert ("select(" in text) != turns
    assert text.count("exp(") == 1 or not turns
