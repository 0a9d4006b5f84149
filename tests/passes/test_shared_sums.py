"""split_reductions on a CPU: reductions that one thread would do alone, and those that stay."""

from __future__ import annotations

import json

import numpy as np
import pytest
from kernel_cases import random_array

import stack
from stack.backends.mlir import pool
from stack.ir import Func, parse
from stack.rewrite import Pipeline
from stack.target import as_cpu

SPLIT = {
    "one row": ("%x: f32[1, 1000000]", "sum", "[1]", "f32[1]"),
    "everything": ("%x: f32[1000, 1000]", "max", "[0, 1]", "f32[]"),
    "sixteen bits": ("%x: bf16[1000000]", "sum", "[0]", "bf16[]"),
    "a prime": ("%x: f32[999983]", "sum", "[0]", "f32[]"),
    "a few long columns": ("%x: f32[300000, 3]", "min", "[0]", "f32[3]"),
    "many columns": ("%x: f32[1000, 1000]", "sum", "[0]", "f32[1000]"),
    "columns of rows of a line": ("%x: f32[1, 1000, 1000]", "max", "[1]", "f32[1, 1000]"),
    "an odd array": ("%x: f32[511, 769]", "sum", "[0, 1]", "f32[]"),
}
WHOLE = {
    "many rows": ("%x: f32[1000, 1000]", "sum", "[1]", "f32[1000]"),
    "a row for each of two threads": ("%x: f32[2, 1000000]", "sum", "[1]", "f32[2]"),
    "columns of each of two": ("%x: f32[2, 1000, 1000]", "sum", "[1]", "f32[2, 1000]"),
    "columns of which tiles hold a part": ("%x: f32[1000, 20000]", "sum", "[0]", "f32[20000]"),
    "short columns": ("%x: f32[60, 10000]", "sum", "[0]", "f32[10000]"),
    "too short to pay": ("%x: f32[1, 20000]", "sum", "[1]", "f32[1]"),
    "nothing": ("%x: f32[0, 1000000]", "sum", "[0, 1]", "f32[]"),
    "axes apart": ("%x: f32[1000, 1, 1000]", "sum", "[0, 2]", "f32[1]"),
    "complex numbers": ("%x: c64[1000000]", "sum", "[0]", "c64[]"),
}
PRIME_OF_A_VALUE = """func @main(%x: f32[999983]) -> (f32[]) at tensor {
  %y = mul(%x, %x) : f32[999983]
  %z = reduce(%y) {axes=[0], kind="sum"} : f32[]
  return %z
}
"""


def reduction(params: str, kind: str, axes: str, result: str) -> Func:
    return parse(
        f"func @main({params}) -> ({result}) at tensor {{\n"
        f'  %z = reduce(%x) {{axes={axes}, kind="{kind}"}} : {result}\n  return %z\n}}\n'
    )


def split(func: Func) -> Func:
    return Pipeline("split_reductions").run(func, target=as_cpu(None)).func


@pytest.mark.parametrize("name", SPLIT)
def test_the_work_of_one_thread_is_shared(name: str) -> None:
    func = reduction(*SPLIT[name])
    made = split(func)
    assert made is not func
    assert split(made) is made
    taken = func.params[0]
    x = random_array((str(taken.dtype), *taken.shape), np.random.default_rng())
    wide = x.astype(np.float64)
    _, kind, axes, _ = SPLIT[name]
    wanted = getattr(wide, kind)(tuple(json.loads(axes)))
    rounding = 2.0**-8 if taken.dtype.bits == 16 else 1e-6
    bound = rounding * np.abs(wide).sum(tuple(json.loads(axes)))
    assert np.all(np.abs(np.float64(made.interpret(x)) - wanted) <= bound)


@pytest.mark.parametrize("name", WHOLE)
def test_others_stay(name: str) -> None:
    func = reduction(*WHOLE[name])
    assert split(func) is func


def test_a_value_is_not_computed_apart_for_a_rest() -> None:
    func = parse(PRIME_OF_A_VALUE)
    assert split(func) is func


@pytest.mark.parametrize("shape", [(1, 1000000), (511, 769), (999983,)])
def test_results_do_not_depend_on_threads(shape: tuple[int, ...]) -> None:
    x = np.random.default_rng().standard_normal(shape).astype(np.float32)
    func = reduction(f"%x: f32{[*shape]}", "sum", str([*range(len(shape))]), "f32[]")
    compiled = stack.compile(func, x)
    shared = pool.pool()
    assert shared is not None
    found: list[float] = []
    try:
        for count in (1, 2, 3, 4, 7):
            shared.limit(count)
            found.append(float(compiled(x)))
    finally:
        shared.limit(None)
    assert len({*found}) == 1
    # eager's own error: what pairwise sums of so many floats leave
    wide = x.astype(np.float64)
    assert abs(found[0] - wide.sum()) <= 1e-6 * np.abs(wide).sum()


@pytest.mark.parametrize("kind", ["max", "sum"])
@pytest.mark.parametrize("special", [np.nan, np.inf])
@pytest.mark.parametrize("place", [0, 500000, 999982])
def test_what_is_not_finite_reaches_the_result(kind: str, special: float, place: int) -> None:
    x = np.random.default_rng().standard_normal(999983).astype(np.float32)
    x[place] = special
    compiled = stack.compile(reduction("%x: f32[999983]", kind, "[0]", "f32[]"), x)
    np.testing.assert_equal(np.float32(compiled(x)), np.float32(special))


# of a value that two arrays make: shape, axes, and what the first stage keeps
COMPUTED = {
    "rows": ((1024, 1000), (0, 1), "[32, 32, 1000]"),
    "few before many": ((8, 32, 56, 56), (0, 1, 2, 3), "[8, 4, 8, 56, 56]"),
    "an axis that stays": ((1, 600, 3000), (1, 2), "[1, 30, 20, 3000]"),
    "no part divides": ((3, 999983), (0, 1), None),
}


@pytest.mark.parametrize("name", COMPUTED)
@pytest.mark.parametrize("kind", ["sum", "max"])
def test_a_computed_array_keeps_its_last_axis(name: str, kind: str) -> None:
    """As one axis, each operand would be read at a place that a division finds."""
    shape, axes, kept = COMPUTED[name]
    left = [n for i, n in enumerate(shape) if i not in axes]
    func = parse(
        f"func @main(%x: f32{[*shape]}, %y: f32{[*shape]}) -> (f32{left}) at tensor {{\n"
        f"  %d = sub(%x, %y) : f32{[*shape]}\n"
        f'  %z = reduce(%d) {{axes={[*axes]}, kind="{kind}"}} : f32{left}\n  return %z\n}}\n'
    )
    made = split(func)
    assert split(made) is made
    views = [str(list(n.shape)) for n in made.nodes if n.op == "reshape"]
    assert views == [] if kept is None else kept in views
    rng = np.random.default_rng(0)
    x, y = (rng.standard_normal(shape).astype(np.float32) for _ in range(2))
    wanted = getattr(np.float64(x - y), kind)(axes)
    np.testing.assert_allclose(made.interpret(x, y), wanted, rtol=1e-5, atol=1e-2)


OF_TWO = """func @main(%x: f32[4096, 1000], %y: f32[4096, 1000]) -> (RESULT) at tensor {
  %d = sub(%x, %y) : f32[4096, 1000]
  %e = exp(%d) : f32[4096, 1000]
  %z = reduce(%e) {axes=[0, 1], kind="sum"} : f32[]
  return %z
}
"""


def test_what_several_arrays_make_has_no_view_in_its_middle() -> None:
    """As one axis with what follows it, where a view would have lines walked down as columns."""
    made = split(parse(OF_TWO.replace("RESULT", "f32[]")))
    views = [n for n in made.nodes if n.op == "reshape"]
    assert [(v.args[0].op, v.shape) for v in views] == [("param", (32, 128, 1000))] * 2
    grouped = Pipeline("fuse,coalesce").run(made, target=as_cpu(None)).func
    first = next(n for n in grouped.nodes if n.op == "fusion")
    assert [p.shape for p in first.blocks[0].params] == [(32, 128000)] * 2


def test_what_others_read_stays_as_it_is() -> None:
    text = OF_TWO.replace("RESULT", "f32[], f32[4096, 1000]").replace("return %z", "return %z, %d")
    made = split(parse(text))
    (view,) = [n for n in made.nodes if n.op == "reshape"]
    assert view.args[0].op == "sub"


def test_work_of_what_is_added_counts() -> None:
    few = OF_TWO.replace("RESULT", "f32[]").replace("4096", "64")
    much, little = parse(few), parse(few.replace("exp", "neg"))
    assert split(much) is not much
    assert split(little) is little
