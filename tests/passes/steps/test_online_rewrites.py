"""Rules of step rewrite, window, and steps of online loops: values, and what stays as it is."""

from __future__ import annotations

import numpy as np
import pytest
from masked_nests import CAUSAL, FLASH, TILES, attention, nest, rows
from nest_cases import around, gpu_nest, kernel_of, random_inputs, results, wrong
from stream_nests import VARIANCE, softmax, sums

from stack.ir import Node, verify
from stack.passes.steps.primitives import parse_steps, run_steps

INF, NAN = np.inf, np.nan
SPECIAL = np.array([
    [-INF] * 7,
    [INF, 0, 1, 2, 3, 4, 5],
    [0, 1, NAN, 2, 3, 4, 5],
    [0, -INF, -INF, -INF, -INF, -INF, 1],
    [-INF, -INF, -INF, -INF, -INF, 0, 1],
    [1e30, -1e30, 0, 0, 0, 0, 0],
    [3e38, 3e38, 0, 0, 0, 0, 0],
    [5, 4, 3, 2, 1, 0, -1],
], np.float32)  # fmt: skip


def ops(kernel: Node, op: str) -> int:
    """The number of nodes of an op."""
    return sum(n.op == op for n in kernel.blocks[0].all_nodes)


def same(made: Node, before: Node, arrays: list[np.ndarray], rtol: float = 1e-5) -> None:
    """Compares the results of two kernels."""
    verify(around(made))
    for got, want in zip(results(around(made), arrays), results(around(before), arrays)):
        np.testing.assert_allclose(got, want, rtol=rtol, atol=1e-6)


QUOTIENT = """func @f(%a: f32[4, 8], %b: f32[4, 8]) -> (f32[4, 8]) at tensor {
  %e = exp(%b) : f32[4, 8]
  %y = div(%a, %e) : f32[4, 8]
  return %y
}
"""
ROWS = "split r 4; block r.1; vectorize r.1"
LISTS = [
    f"{ROWS}; rfactor r.0",
    f"{ROWS}; vectorize i; rfactor r.0",
    f"{ROWS}; rfactor r.0; rfactor r.0",
    f"{ROWS}; peel r.0 1; rfactor r.0; rfactor r.0.last",
    f"{ROWS}; peel r.0 1; rfactor r.0.last",
    "split r 4; reorder r.0 r.1; block r.1; vectorize r.1",
    "split r 2; reorder r.0 r.1; block r.1; vectorize r.1; vectorize i",
    "split r 8; reorder r.0 r.1; block r.1; vectorize r.1",  # lanes without elements
    f"{ROWS}; vectorize i; rewrite exp2; rewrite scale",
    f"{ROWS}; rewrite exp2",
    f"{ROWS}; rewrite inverses; rewrite scale",
    "reverse i; split r 4; block r.1; vectorize r.1; hold r.0 1",
    "block r; split r 4; vectorize r.1; hold r.0 2",
]


@pytest.mark.each
@pytest.mark.parametrize("program", ["softmax", "sums"])
@pytest.mark.parametrize("text", LISTS)
def test_rows_of_infinities_and_nan(text: str, program: str) -> None:
    before = gpu_nest((softmax if program == "softmax" else sums)(8, 7))
    made = before
    for step in parse_steps(text):
        made = made if step.why_not(made) else step.apply(made)
    near = SPECIAL[[0, 1, 2, 3, 4, 7]].repeat(2, 0)[:8]
    same(made, before, [near if "exp2" in text else SPECIAL], 1e-4)


@pytest.mark.parametrize("size", [6, 8, 21])
@pytest.mark.parametrize("offset", [0.0, 1e4])
def test_variances_of_lanes(size: int, offset: float) -> None:
    """Each lane has its own mean, and a count of elements; some lanes have fewer of them."""
    text = VARIANCE.replace("3, 8", f"3, {size}").replace("0.125", str(1 / size))
    before = gpu_nest(text)
    steps = "split r 4; reorder r.0 r.1; block r.1; vectorize r.1; rewrite inverses"
    made = run_steps(before, parse_steps(steps))
    array = np.random.default_rng(0).standard_normal((3, size)).astype(np.float32) + offset
    same(made, before, [array.astype(np.float32)], 1e-2 if offset else 1e-4)


def test_a_scale_moves_behind_the_mask_and_the_maximum() -> None:
    _, before = nest(attention(CAUSAL, 8, 8), FLASH)
    made = run_steps(before, parse_steps("rewrite scale"))
    (score,) = (n for n in made.blocks[0].all_nodes if n.op == "select" and is_score(n))
    assert score.args[2].op == "reduce"  # the products, without the scale
    arrays = random_inputs(around(before))
    assert not wrong(made, arrays, results(around(before), arrays), 0)
    fused = run_steps(made, parse_steps("rewrite exp2"))
    assert ops(fused, "exp2") == 1
    assert not wrong(fused, arrays, results(around(before), arrays), 1e-5)


def is_score(select: Node) -> bool:
    """True if a selection is the mask of a tile of scores."""
    return select.tensor.rank == 2 and select.args[0].op == "gt"


def reduced(dtype: str, factor: str, kind: str = "max") -> str:
    """The maximum or the minimum of rows that are multiplied by a number."""
    return f"""func @f(%a: {dtype}[4, 8]) -> ({dtype}[4]) at tensor {{
  %s = mul(%a, {factor}:{dtype}) : {dtype}[4, 8]
  %y = reduce(%s) {{axes=[1], kind="{kind}"}} : {dtype}[4]
  return %y
}}
"""


@pytest.mark.parametrize(
    "program",
    [
        reduced("f32", "-0.5"),
        reduced("f32", "0.0"),
        reduced("f32", "0.5", "sum"),
        reduced("i8", "3"),  # products wrap around
        reduced("i32", "3"),
    ],
)
def test_scales_that_stay(program: str) -> None:
    before = gpu_nest(program, "split r 4; vectorize r.1; vectorize i")
    assert run_steps(before, parse_steps("rewrite scale")) is before


@pytest.mark.parametrize("kind", ["max", "min"])
def test_scales_of_infinities(kind: str) -> None:
    before = gpu_nest(reduced("f32", "1e-30", kind), "split r 4; vectorize r.1; vectorize i")
    made = run_steps(before, parse_steps("rewrite scale"))
    assert made is not before
    same(made, before, [np.pad(SPECIAL[:4], ((0, 0), (0, 1)))], 0)


def test_exponentials_that_stay() -> None:
    """Sums, and differences to a value that differs along all axes."""
    for line in ("add(%a, %b)", "sub(%a, %b)", "mul(%a, %b)"):
        text = f"""func @f(%a: f32[4, 8], %b: f32[4, 8]) -> (f32[4]) at tensor {{
  %s = {line} : f32[4, 8]
  %e = exp(%s) : f32[4, 8]
  %y = reduce(%e) {{axes=[1], kind="sum"}} : f32[4]
  return %y
}}
"""
        before = gpu_nest(text, "split r 4; vectorize r.1; vectorize i")
        assert run_steps(before, parse_steps("rewrite exp2")) is before


def test_large_equal_scores_give_1_with_exp2() -> None:
    before = gpu_nest(sums(4, 8))
    made = run_steps(before, parse_steps(f"{ROWS}; vectorize i; rewrite exp2"))
    for value in (1e6, 1e9, 2e9, 1e30, 3e38, -1e30):
        same(made, before, [np.full((4, 8), value, np.float32)])


def test_divisions_of_a_tile_by_one_number_are_one_division() -> None:
    """The division that ends a softmax, outside of online loops."""
    before = gpu_nest(softmax(4, 8), "split r 4; block r.1; vectorize r.1")
    made = run_steps(before, parse_steps("rewrite inverses"))
    divided = [[n for n in k.blocks[0].all_nodes if n.op == "div"] for k in (before, made)]
    assert [n.tensor.rank for n in divided[0]] == [1]
    assert [n.tensor.rank for n in divided[1]] == [0]


def test_divisions_of_rows_by_the_same_counts_are_those_of_one_row() -> None:
    """Rows of 7 in lanes: some lanes have fewer elements than others."""
    program = VARIANCE.replace("3, 8", "4, 7").replace("[3]", "[4]").replace("0.125", str(1 / 7))
    steps = "split r 4; reorder r.0 r.1; block r.1; vectorize r.1; vectorize i"
    before = gpu_nest(program, steps)
    made = run_steps(before, parse_steps("rewrite inverses"))
    (loops,) = ([n for n in k.blocks[0].all_nodes if n.op == "loop"] for k in (made,))
    assert [n.tensor.rank for n in loops[0].blocks[0].all_nodes if n.op == "div"] == [1, 1, 1]
    same(made, before, [SPECIAL[[2, 6, 7, 7]]], 1e-4)


def test_divisions_that_stay() -> None:
    """Divisions of scalars, and of a tile by another one."""
    before = gpu_nest(VARIANCE, "split r 4")
    assert run_steps(before, parse_steps("rewrite inverses")) is before
    before = kernel_of(QUOTIENT, "vectorize j; vectorize i")
    assert run_steps(before, parse_steps("rewrite inverses")) is before


def biased(index: str, dtype: str = "f32") -> str:
    """Sums of rows times a float of positions."""
    return f"""func @f(%a: f32[8, 8]) -> (f32[8]) at tensor {{
  %i = iota() {{axis=0}} : i32[8, 8]
  %j = iota() {{axis=1}} : i32[8, 8]
  {index}
  %c = cast(%d) : {dtype}[8, 8]
  %w = cast(%c) : f32[8, 8]
  %x = mul(%w, %a) : f32[8, 8]
  %y = reduce(%x) {{axes=[1], kind="sum"}} : f32[8]
  return %y
}}
"""


PLANE = "split i 4; split r 4; vectorize r.1; vectorize i.1"


@pytest.mark.parametrize(
    "index",
    [
        "%d = sub(%j, %i) : i32[8, 8]",
        "%h = mul(%j, 3:i32) : i32[8, 8]\n  %d = add(%h, %i) : i32[8, 8]",
        "%h = add(%j, 1000:i32) : i32[8, 8]\n  %d = sub(%i, %h) : i32[8, 8]",
        "%h = mul(%j, 2000000:i32) : i32[8, 8]\n  %d = sub(%h, %i) : i32[8, 8]",
    ],
)
def test_floats_of_positions(index: str) -> None:
    before = gpu_nest(biased(index), PLANE)
    made = run_steps(before, parse_steps("rewrite positions"))
    assert made is not before
    arrays = random_inputs(around(before))
    assert not wrong(made, arrays, results(around(before), arrays), 0)


@pytest.mark.parametrize(
    ("index", "dtype"),
    [
        ("%d = mul(%j, %i) : i32[8, 8]", "f32"),
        ("%h = mul(%j, 4000000:i32) : i32[8, 8]\n  %d = sub(%h, %i) : i32[8, 8]", "f32"),
        ("%d = sub(%j, %i) : i32[8, 8]", "f16"),
        ("%d = add(%j, 4:i32) : i32[8, 8]", "f32"),  # the same in all rows
    ],
)
def test_floats_of_positions_that_stay(index: str, dtype: str) -> None:
    before = gpu_nest(biased(index, dtype), PLANE)
    assert run_steps(before, parse_steps("rewrite positions")) is before


def table(index: str, size: int, indices: str = "%c") -> str:
    """Sums of rows times elements of a table."""
    return f"""func @f(%p: f32[{size}], %a: f32[8, 8]) -> (f32[8]) at tensor {{
  %i = iota() {{axis=0}} : i32[8, 8]
  %j = iota() {{axis=1}} : i32[8, 8]
  {index}
  %g = gather(%p, {indices}) {{rule="w!, a b -> a b"}} : f32[8, 8]
  %x = mul(%g, %a) : f32[8, 8]
  %y = reduce(%x) {{axes=[1], kind="sum"}} : f32[8]
  return %y
}}
"""


TABLES = {
    "keys - rows": ("%d = sub(%j, %i) : i32[8, 8]\n  %c = add(%d, 7:i32) : i32[8, 8]", 15),
    "rows - keys": ("%d = sub(%i, %j) : i32[8, 8]\n  %c = add(%d, 7:i32) : i32[8, 8]", 15),
    "rows + keys": ("%c = add(%i, %j) : i32[8, 8]", 15),
    "a longer table": ("%d = add(%i, %j) : i32[8, 8]\n  %c = add(%d, 9:i32) : i32[8, 8]", 40),
}


@pytest.mark.parametrize(
    "steps", ["split r 4; vectorize r.1; vectorize i", "vectorize r; vectorize i"]
)
@pytest.mark.parametrize("name", TABLES)
def test_windows(name: str, steps: str) -> None:
    before = gpu_nest(table(*TABLES[name]), steps)
    made = run_steps(before, parse_steps("window p0"))
    assert ops(made, "gather") == 1
    arrays = random_inputs(around(before))
    assert not wrong(made, arrays, results(around(before), arrays), 1e-6)


@pytest.mark.parametrize(
    ("index", "size"),
    [
        ("%c = mul(%i, %j) : i32[8, 8]", 50),
        ("%d = mul(%i, 8:i32) : i32[8, 8]\n  %c = add(%d, %j) : i32[8, 8]", 64),  # a long run
        ("%c = add(%j, 0:i32) : i32[8, 8]", 8),  # one axis
    ],
)
def test_tables_without_windows(index: str, size: int) -> None:
    before = gpu_nest(table(index, size), "vectorize r; vectorize i")
    (step,) = parse_steps("window p0")
    assert step.why_not(before) == "no tile reads short runs of p0 many times"


def test_masked_rows_after_all_rules() -> None:
    _, before = nest(rows(CAUSAL, 8, 7))
    steps = f"{TILES}; rewrite scale; bound r.0 where=cut; rewrite exp2; rewrite inverses"
    made = run_steps(before, parse_steps(steps))
    same(made, before, [SPECIAL[[7, 7, 4, 3, 0, 1, 2, 7]]], 1e-4)


def test_a_sum_that_another_state_reads_is_reduced_in_the_loop() -> None:
    """The mean of a variance is rescaled by; `rfactor` leaves it, also if asked again."""
    kernel = gpu_nest(VARIANCE, "split r 4; block r.1; vectorize r.1; vectorize i")
    made = run_steps(kernel, parse_steps("rfactor r.0"))
    (again,) = parse_steps("rfactor r.0")
    assert again.why_not(made) == "no loop over r.0 adds the reduction of a tile to a total"
    arrays = random_inputs(around(kernel))
    assert not wrong(made, arrays, results(around(kernel), arrays), 1e-5)


def test_reordered_loops_are_both_online() -> None:
    (step,) = parse_steps("reorder i r")
    assert "not perfectly nested" in step.why_not(gpu_nest(sums(2, 8)))
    blocked = gpu_nest(sums(2, 8), "split r 4; block r.1")
    (step,) = parse_steps("reorder r.0 r.1")
    assert "not perfectly nested" in step.why_not(blocked)
