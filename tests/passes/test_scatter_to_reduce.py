"""scatter_to_reduce: scatters to lines of positions become reductions; others stay."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from stack.ir import Func, parse, verify
from stack.ir.types import DTYPES, TensorType
from stack.rewrite import Pipeline

PASSES = "scatter_to_reduce,canonicalize"
I, J = 5, 7


def line(slopes: Sequence[int], start: int, sizes: Sequence[int]) -> str:
    """Statements for `%p`, a line of the positions of an array of these sizes."""
    text = ", ".join(map(str, sizes))
    made = [f"%s = broadcast({start}:i64) {{axes=[]}} : i64[{text}]"]
    before = "%s"
    for axis, slope in enumerate(slopes):
        made.append(f"%i{axis} = iota() {{axis={axis}}} : i64[{text}]")
        made.append(f"%m{axis} = mul(%i{axis}, {slope}:i64) : i64[{text}]")
        name = "%p" if axis == len(slopes) - 1 else f"%a{axis}"
        made.append(f"{name} = add({before}, %m{axis}) : i64[{text}]")
        before = name
    return "\n  ".join(made)


def scattered(
    slopes: Sequence[int],
    start: int,
    shape: Sequence[int],
    *,
    rule: str = "b!, i j, i j -> b!",
    kind: str = "add",
    dtype: str = "f32",
    sizes: Sequence[int] = (I, J),
    updates: Sequence[int] = (I, J),
    at: str = "%p",
    more: str = "",
) -> Func:
    """A scatter to `at`, which is a line `%p` unless `more` makes something else of that."""
    x, u = (", ".join(map(str, s)) for s in (shape, updates))
    return parse(
        f"func @f(%x: {dtype}[{x}], %u: {dtype}[{u}]) -> ({dtype}[{x}]) at tensor {{\n"
        f"  {line(slopes, start, sizes)}\n  {more}\n"
        f'  %z = scatter(%x, {at}, %u) {{kind="{kind}", rule="{rule}"}} : {dtype}[{x}]\n'
        "  return %z\n}\n"
    )


def check(func: Func, rng: np.random.Generator, *, passes: str = PASSES) -> Func:
    """The function without a scatter, after comparing values."""
    made = Pipeline(passes).run(func).func
    verify(made)
    assert parse(str(made)) is made
    args = []
    for p in func.params:
        shape = [int(s) for s in p.shape]
        args.append(
            rng.standard_normal(shape).astype(np.float32)
            if p.dtype.is_float
            else rng.integers(-9, 9, shape).astype(np.int64)
        )
    np.testing.assert_allclose(made.interpret(*args), func.interpret(*args), rtol=1e-5, atol=1e-5)
    return made


LINES = {  # slopes, start, extent
    "j - i": ((-1, 1), 4, I + J - 1),
    "i - j": ((1, -1), 6, I + J - 1),
    "i + j": ((1, 1), 0, I + J - 1),
    "more elements than are met": ((-1, 1), 6, 20),
    "few of many elements": ((-1, 1), 504, 1000),
    "two lines apart": ((2, 1), 0, 2 * I + J - 2),
    "steps of two down": ((-2, 1), 8, 2 * I + J),
    "one line for all": ((0, 1), 0, J),
    "columns do not move": ((1, 0), 0, I),
    "backwards": ((0, -1), 6, J),
}


@pytest.mark.parametrize("passes", [PASSES, f"{PASSES},fuse,blocks"], ids=["ir", "kernels"])
@pytest.mark.parametrize("name", LINES)
def test_values(name: str, passes: str, rng: np.random.Generator) -> None:
    slopes, start, extent = LINES[name]
    made = check(scattered(slopes, start, (extent,)), rng, passes=passes)
    assert not any(n.op == "scatter" for n in made.nodes)


@pytest.mark.parametrize("kind", ["add", "mul", "max", "min"])
@pytest.mark.parametrize("dtype", ["f32", "i64"])
def test_kinds(kind: str, dtype: str, rng: np.random.Generator) -> None:
    made = check(scattered((-1, 1), 4, (11,), kind=kind, dtype=dtype), rng)
    assert not any(n.op == "scatter" for n in made.nodes)


@pytest.mark.parametrize(
    ("rule", "shape", "updates", "slopes"),
    [
        ("a b!, i j, a i j -> a b!", (3, 11), (3, I, J), (-1, 1)),
        ("b! d, i j, i j d -> b! d", (11, 4), (I, J, 4), (-1, 1)),
        ("a b! d, i j, a i j d -> a b! d", (2, 11, 3), (2, I, J, 3), (-1, 1)),
        ("b!, i j k, i j k -> b!", (11,), (I, J, 3), (-1, 1, 0)),
        ("b!, i j, i j -> b!", (11,), (1, J), (-1, 1)),
        ("b!, i j, i j -> b!", (11,), (I, 1), (-1, 1)),
        ("i b!, i j, i j -> i b!", (I, 11), (I, J), (-1, 1)),  # each row has a line of its own
    ],
)
def test_other_axes(
    rule: str,
    shape: tuple[int, ...],
    updates: tuple[int, ...],
    slopes: tuple[int, ...],
    rng: np.random.Generator,
) -> None:
    names = rule.split(", ")[1].split()
    own = rule.split(" ->")[0].split(", ")[2].split()
    sizes = [updates[own.index(n)] for n in names]
    func = scattered(slopes, 4, shape, rule=rule, sizes=sizes, updates=updates)
    assert not any(n.op == "scatter" for n in check(func, rng).nodes)


CLIPPED = {
    "above": "%c = min(%p, 8:i64) : i64[{}]",
    "below": "%c = max(%p, 2:i64) : i64[{}]",
    "both": "%a = max(%p, 2:i64) : i64[{0}]\n  %c = min(%a, 7:i64) : i64[{0}]",
    "the other way round": "%a = min(%p, 7:i64) : i64[{0}]\n  %c = max(%a, 2:i64) : i64[{0}]",
    "moved": "%a = min(%p, 5:i64) : i64[{0}]\n  %b = max(%a, -2:i64) : i64[{0}]\n"
    "  %c = add(%b, 2:i64) : i64[{0}]",
    "one place": "%a = max(%p, 5:i64) : i64[{0}]\n  %c = min(%a, 3:i64) : i64[{0}]",
    "not at all": "%a = max(%p, -50:i64) : i64[{0}]\n  %c = min(%a, 50:i64) : i64[{0}]",
}


@pytest.mark.parametrize("passes", [PASSES, f"{PASSES},fuse,blocks"], ids=["ir", "kernels"])
@pytest.mark.parametrize("name", CLIPPED)
@pytest.mark.parametrize("kind", ["add", "max"])
def test_clipped_lines(name: str, kind: str, passes: str, rng: np.random.Generator) -> None:
    """At a bound all updates beyond it are reduced."""
    start = -2 if name == "moved" else 4
    more = CLIPPED[name].format(f"{I}, {J}")
    rule = "a b!, i j, a i j -> a b!"
    func = scattered(
        (-1, 1), start, (3, 11), at="%c", more=more, rule=rule, kind=kind, updates=(3, I, J)
    )
    assert not any(n.op == "scatter" for n in check(func, rng, passes=passes).nodes)


def test_expected() -> None:
    before = scattered((-1, 1), 4, (11,))
    made = Pipeline("scatter_to_reduce").run(before).func
    ops = [n.op for n in made.nodes]
    assert ops.count("pad") == ops.count("gather") == ops.count("reduce") == 1
    (pad,) = (n for n in made.nodes if n.op == "pad")
    assert pad.attrs["low"] == (0, 4)
    assert pad.attrs["high"] == (0, 4)
    (gather,) = (n for n in made.nodes if n.op == "gather")
    assert gather.attrs["rule"] == "a b!, a c -> a c"
    assert gather.tensor == TensorType(DTYPES["f32"], (I, 11))


@pytest.mark.parametrize(
    "func",
    [
        scattered((3, 2), 0, (30,)),
        scattered((0, 2), 0, (15,)),
        scattered((-1, 1), 4, (11,), kind="set"),
        scattered((-9, 1), 36, (43,)),
        scattered((-1, 1), 4, (99,), at="%c", more=f"%c = mul(%p, %p) : i64[{I}, {J}]"),
    ],
    ids=["slopes of two and more", "holes", "set", "lines far apart", "squares"],
)
def test_what_stays(func: Func) -> None:
    assert Pipeline("scatter_to_reduce").run(func).func is func


def test_data_stays() -> None:
    func = parse(
        "func @f(%x: f32[11], %p: i64[5, 7], %u: f32[5, 7]) -> (f32[11]) at tensor {\n"
        '  %z = scatter(%x, %p, %u) {kind="add", rule="b!, i j, i j -> b!"} : f32[11]\n'
        "  return %z\n}\n"
    )
    assert Pipeline("scatter_to_reduce").run(func).func is func
