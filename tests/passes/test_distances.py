"""distances: what depends only on the distance of two positions is computed for each distance."""

from __future__ import annotations

import numpy as np
import pytest

from stack.ir import Func, parse, verify
from stack.ir.traits import reads_by_data, writes_by_data
from stack.rewrite import Pipeline

PASSES = "canonicalize,distances,canonicalize"
BUCKETS, HEADS = 5, 3


def looked_up(
    index: str, rows: int = 4, columns: int = 6, rule: str = "t! h, i j -> i j h"
) -> Func:
    """A table, read at `%p`, which statements compute from `%d`, the column minus the row."""
    size = f"{rows}, {columns}"
    result = ", ".join({"i": str(rows), "j": str(columns), "h": str(HEADS)}[n] for n in rule[-5::2])
    lines = index.replace("[]", f"[{size}]").replace("\n", "\n  ")
    return parse(
        f"func @f(%t: f32[{BUCKETS}, {HEADS}], %x: i64[{size}]) -> (f32[{result}]) at tensor {{\n"
        f"  %i = iota() {{axis=0}} : i64[{size}]\n"
        f"  %j = iota() {{axis=1}} : i64[{size}]\n"
        f"  %d = sub(%j, %i) : i64[{size}]\n"
        f"  {lines}\n"
        f'  %y = gather(%t, %p) {{rule="{rule}"}} : f32[{result}]\n'
        "  return %y\n}\n"
    )


FAR = "%a = abs(%d) : i64[]\n%p = min(%a, 4:i64) : i64[]"
INDICES = {
    "clipped distance": FAR,
    "logarithm of the distance": (
        "%a = abs(%d) : i64[]\n%f = cast(%a) : f32[]\n%g = max(%f, 1.0:f32) : f32[]\n"
        "%l = log(%g) : f32[]\n%m = mul(%l, 2.0:f32) : f32[]\n%p = cast(%m) : i64[]"
    ),
    "either side of the diagonal": (
        "%s = gt(%d, 0:i64) : bool[]\n%v = cast(%s) : i64[]\n%w = mul(%v, 2:i64) : i64[]\n"
        "%p = add(%w, 1:i64) : i64[]"
    ),
    "twice the negative distance, clipped": (
        "%m = mul(%d, -2:i64) : i64[]\n%a = max(%m, 0:i64) : i64[]\n%p = min(%a, 4:i64) : i64[]"
    ),
}
OTHERS = {
    "the sum of the positions": "%s = add(%i, %j) : i64[]\n%p = min(%s, 4:i64) : i64[]",
    "one position": "%p = min(%j, 4:i64) : i64[]",
    "a distance of steps of two": (
        "%s = sub(%d, %i) : i64[]\n%a = abs(%s) : i64[]\n%p = min(%a, 4:i64) : i64[]"
    ),
    "data": "%a = abs(%x) : i64[]\n%p = min(%a, 4:i64) : i64[]",
    "data and the distance": (
        "%s = add(%x, %d) : i64[]\n%a = abs(%s) : i64[]\n%p = min(%a, 4:i64) : i64[]"
    ),
}


def drawn(func: Func, rng: np.random.Generator) -> list[np.ndarray]:
    shapes = [tuple(int(s) for s in p.shape) for p in func.params]
    return [rng.standard_normal(shapes[0]).astype(np.float32), rng.integers(-9, 9, shapes[1])]


@pytest.mark.parametrize("size", [(4, 6), (6, 4), (2, 2), (7, 2), (5, 5)])
@pytest.mark.parametrize("index", INDICES.values(), ids=INDICES)
def test_table(index: str, size: tuple[int, int], rng: np.random.Generator) -> None:
    func = looked_up(index, *size)
    made = Pipeline(PASSES).run(func).func
    verify(made)
    assert parse(str(made)) is made
    args = drawn(func, rng)
    np.testing.assert_array_equal(made.interpret(*args), func.interpret(*args))
    tables = [n for n in made.nodes if reads_by_data(n)]
    assert len(tables) == 2
    assert tables[0].args[1].shape == (sum(size) - 1,)


EXPECTED = """\
func @f(%t: f32[5, 3], %x: i64[2, 3]) -> (f32[2, 3, 3]) at tensor {
  %iota = iota() {axis=0} : i64[4]
  %add = add(%iota, -1:i64) : i64[4]
  %abs = abs(%add) : i64[4]
  %min = min(%abs, 4:i64) : i64[4]
  %gather = gather(%t, %min) {rule="t! h, a -> h a"} : f32[3, 4]
  %iota_1 = iota() {axis=0} : i32[3]
  %iota_1_1 = broadcast(%iota_1) {axes=[1]} : i32[2, 3]
  %iota_2 = iota() {axis=0} : i32[2]
  %iota_2_1 = broadcast(%iota_2) {axes=[0]} : i32[2, 3]
  %sub = sub(%iota_1_1, %iota_2_1) : i32[2, 3]
  %add_1 = add(%sub, 1:i32) : i32[2, 3]
  %y = gather(%gather, %add_1) {rule="h a!, i j -> i j h"} : f32[2, 3, 3]
  return %y
}
"""


def test_text() -> None:
    made = Pipeline(PASSES).run(looked_up(FAR, 2, 3)).func
    assert str(made).strip() == EXPECTED.strip()


@pytest.mark.parametrize("rule", ["t! h, i j -> i j h", "t! h, i j -> h i j", "t! h, i j -> i h j"])
def test_order_of_axes(rule: str, rng: np.random.Generator) -> None:
    func = looked_up(FAR, rule=rule)
    made = Pipeline(PASSES).run(func).func
    args = drawn(func, rng)
    np.testing.assert_array_equal(made.interpret(*args), func.interpret(*args))
    first = next(n for n in made.nodes if reads_by_data(n))
    assert first.shape == (HEADS, 9), "neighbours in distance are neighbours in memory"


@pytest.mark.parametrize("index", OTHERS.values(), ids=OTHERS)
def test_other_indices_stay(index: str) -> None:
    func = Pipeline("canonicalize").run(looked_up(index)).func
    assert Pipeline("distances").run(func).func is func


def test_affine_indices_stay() -> None:
    """Computing such an index costs no more than reading it."""
    func = Pipeline("canonicalize").run(looked_up("%p = add(%d, 3:i64) : i64[]", 4, 2)).func
    assert Pipeline("distances").run(func).func is func


def test_one_row_stays() -> None:
    func = Pipeline("canonicalize").run(looked_up(FAR, 1, 5)).func
    assert Pipeline("distances").run(func).func is func


TESTED = """\
func @f() -> ({result}) at tensor {{
  %i = iota() {{axis=0}} : i64[3, 4]
  %j = iota() {{axis=1}} : i64[3, 4]
  %d = sub(%j, %i) : i64[3, 4]
  %a = abs(%d) : i64[3, 4]
  %m = min(%a, 2:i64) : i64[3, 4]
  %t = {test}
  %y = reduce(%t) {{axes={axes}, kind="{kind}"}} : {result}
  return %y
}}
"""
EQUAL = "eq(%m, %a) : bool[3, 4]"


@pytest.mark.parametrize(
    ("test", "axes", "kind", "result", "is_changed"),
    [
        (EQUAL, "[0, 1]", "and", "bool[]", True),
        (EQUAL, "[0, 1]", "or", "bool[]", True),
        ("mul(%m, 5:i64) : i64[3, 4]", "[0, 1]", "max", "i64[]", True),
        ("mul(%m, 5:i64) : i64[3, 4]", "[0, 1]", "sum", "i64[]", False),
        (EQUAL, "[1]", "and", "bool[3]", False),
    ],
)
def test_reductions(test: str, axes: str, kind: str, result: str, is_changed: bool) -> None:
    func = parse(TESTED.format(test=test, axes=axes, kind=kind, result=result))
    made = Pipeline("distances").run(func).func
    assert (made is not func) == is_changed
    np.testing.assert_array_equal(made.interpret(), func.interpret())
    if is_changed:
        assert max(n.tensor.size for n in made.nodes) == 6


@pytest.mark.parametrize("leaf", ["%x", "iota() {axis=0} : f32[4, 4]"])
def test_long_chains(leaf: str) -> None:
    """Nothing recurses, whether data or positions begin a chain."""
    first = "  %a0 = exp(%x) : f32[4, 4]" if leaf == "%x" else f"  %a0 = {leaf}"
    chain = "\n".join(f"  %a{i} = neg(%a{i - 1}) : f32[4, 4]" for i in range(1, 3000))
    func = parse(
        f"func @f(%x: f32[4, 4]) -> (f32[]) at tensor {{\n{first}\n{chain}\n"
        '  %y = reduce(%a2999) {axes=[0, 1], kind="max"} : f32[]\n  return %y\n}\n'
    )
    assert Pipeline("distances").run(func).func is func


def summed(index: str, kind: str = "add", rule: str = "t! h, i j, i j h -> t! h") -> Func:
    """Updates of a table at `%p`, which statements compute from `%d`."""
    lines = index.replace("[]", "[4, 6]").replace("\n", "\n  ")
    order = rule.split(" -> ")[0].split(", ")[2].split()
    shape = ", ".join({"i": "4", "j": "6", "h": str(HEADS)}[n] for n in order)
    return parse(
        f"func @f(%t: f32[{BUCKETS}, {HEADS}], %u: f32[{shape}], %x: i64[4, 6])"
        f" -> (f32[{BUCKETS}, {HEADS}]) at tensor {{\n"
        "  %i = iota() {axis=0} : i64[4, 6]\n  %j = iota() {axis=1} : i64[4, 6]\n"
        f"  %d = sub(%j, %i) : i64[4, 6]\n  {lines}\n"
        f'  %y = scatter(%t, %p, %u) {{kind="{kind}", rule="{rule}"}} : f32[{BUCKETS}, {HEADS}]\n'
        "  return %y\n}\n"
    )


@pytest.mark.parametrize("rule", ["t! h, i j, i j h -> t! h", "t! h, i j, h i j -> t! h"])
@pytest.mark.parametrize("index", INDICES.values(), ids=INDICES)
def test_sums(index: str, rule: str, rng: np.random.Generator) -> None:
    func = summed(index, rule=rule)
    made = Pipeline(PASSES).run(func).func
    verify(made)
    scatters = [n for n in made.nodes if writes_by_data(n)]
    assert [s.args[1].tensor.rank for s in scatters] == [2, 1]
    args = [rng.standard_normal([int(s) for s in p.shape]).astype(np.float32) for p in func.params]
    args[2] = rng.integers(-9, 9, (4, 6))
    np.testing.assert_allclose(made.interpret(*args), func.interpret(*args), rtol=1e-5, atol=1e-6)
    lines = Pipeline("scatter_to_reduce").run(made).func
    assert len([n for n in lines.nodes if writes_by_data(n)]) == 1, "lines are sums, not updates"


@pytest.mark.parametrize("kind", ["max", "set"])
def test_other_updates_stay(kind: str) -> None:
    func = Pipeline("canonicalize").run(summed(FAR, kind)).func
    assert Pipeline("distances").run(func).func is func


@pytest.mark.parametrize("index", OTHERS.values(), ids=OTHERS)
def test_sums_at_other_indices_stay(index: str) -> None:
    func = Pipeline("canonicalize").run(summed(index)).func
    assert Pipeline("distances").run(func).func is func
