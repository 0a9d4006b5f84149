"""Steps bound, branch and assume: values of online loops under masks."""

from __future__ import annotations

import numpy as np
import pytest
from masked_nests import (
    BLOCKS,
    BOTH,
    FLASH,
    LENGTH,
    LIMITS,
    START,
    THIRDS,
    TILES,
    attention,
    nest,
    rows,
)
from nest_cases import around, results

from stack.ir import Func, Node, parse, verify
from stack.ir.traits import is_loop
from stack.passes.steps.primitives import parse_steps, run_steps
from stack.target import as_cpu

STEPS = [
    "bound r.0",
    "bound r.0 where=cut",
    "branch r.0",
    "bound r.0; branch r.0",
    "reverse i.0; bound r.0 where=cut; rewrite scale",
]
SPECIAL = [np.nan, np.inf, -np.inf, 1e30, -1e30]


def scores(m: int, n: int, seed: int = 0) -> np.ndarray:
    """Random scores, some of which are nan, infinite or large."""
    rng = np.random.default_rng(seed)
    made = rng.standard_normal((m, n)).astype(np.float32)
    for value in SPECIAL:
        made[rng.integers(m), rng.integers(n)] = value
    return made


def same(made: Node, before: Node, arrays: list[np.ndarray], rtol: float = 1e-5) -> None:
    """Compares the results of two kernels, and reads the text of the first back."""
    func = around(made)
    verify(func)
    assert parse(str(func)) is func
    for got, want in zip(results(func, arrays), results(around(before), arrays), strict=True):
        np.testing.assert_allclose(got, want, rtol=rtol, atol=1e-6)


def legal(kernel: Node, steps: str) -> Node:
    """A kernel after those steps of a list that are legal."""
    for step in parse_steps(steps):
        kernel = kernel if step.why_not(kernel) else step.apply(kernel)
    return kernel


def limited(kernel: Node, kind: str = "serial") -> int:
    """The number of loops that leave iterations out."""
    loops = (n for n in kernel.blocks[0].all_nodes if is_loop(n, kind))
    return sum(bool(loop.attrs.get("limited")) for loop in loops)


@pytest.mark.each
@pytest.mark.parametrize("sizes", [(10, 11), (8, 8), (3, 17)])
@pytest.mark.parametrize("name", LIMITS)
def test_rows_under_masks_of_positions(name: str, sizes: tuple[int, int]) -> None:
    _, before = nest(rows(LIMITS[name], *sizes))
    tiled = run_steps(before, parse_steps(TILES))
    for steps in STEPS:
        same(legal(tiled, steps), before, [scores(*sizes)])


@pytest.mark.parametrize("first", ["", "split r 4", "split r 4; block r.1; vectorize r.1"])
@pytest.mark.parametrize("name", ["causal", "window", "rows that lose all"])
def test_rows_on_a_cpu(name: str, first: str) -> None:
    """Indices have 64 bits; tiles have one axis, or there are none."""
    _, before = nest(rows(LIMITS[name]), target=as_cpu(None))
    axis = "r.0" if "vectorize" in first else "r.1" if first else "r"
    for steps in (f"bound {axis}", f"bound {axis} where=cut"):
        made = run_steps(before, parse_steps(f"{first}; {steps}"), as_cpu(None))
        assert limited(made) > 0
        same(made, before, [scores(10, 11)])


@pytest.mark.every(5)
@pytest.mark.parametrize("steps", STEPS[:3])
@pytest.mark.parametrize("name", LIMITS)
def test_attention_under_masks_of_positions(name: str, steps: str) -> None:
    _, before = nest(attention(LIMITS[name]))
    made = legal(run_steps(before, parse_steps(FLASH)), steps)
    rng = np.random.default_rng(1)
    arrays = [rng.standard_normal(s).astype(np.float32) for s in ((10, 4), (11, 4), (11, 4))]
    same(made, before, arrays, 1e-4)


def inputs(func: Func, *arrays: np.ndarray) -> list[np.ndarray]:
    """The arrays in the order of the parameters of a stream: one of each element type."""
    of = {a.dtype.kind: a for a in arrays}
    return [of[p.dtype.kind] for p in func.params]


def wide(mask: tuple[str, str]) -> tuple[str, str]:
    """A mask of 64-bit integers."""
    lines = mask[1].replace("%j", "%k").replace("i32", "i64")
    return mask[0].replace("i32", "i64"), f"%k = cast(%j) : i64{{s}}; {lines}"


EXTREMES = [2**31 - 1, -(2**31), 0, -1, 5, 100, 3, 2**31 - 1, 2, 2**31 - 1, 7, 12]
WIDE = [2**40, -(2**40), 0, -1, 5, 100, 3, 2**31 - 1, 2, 2**33 + 3, 7, 12]
DATA: dict[str, tuple[tuple[str, str], np.ndarray]] = {
    "lengths": (LENGTH, np.arange(12, dtype=np.int32)),
    "lengths that are no positions": (LENGTH, np.array(EXTREMES, np.int32)),
    "starts": (START, np.arange(12, dtype=np.int32)[::-1].copy()),
    "starts that are no positions": (START, np.array(EXTREMES, np.int32)),
    "lengths in blocks": (BLOCKS, np.arange(12, dtype=np.int32) // 2),
    "starts in blocks": (THIRDS, np.arange(12, dtype=np.int32)[::-1] // 3),
    "blocks that are no positions": (BLOCKS, np.array(EXTREMES, np.int32)),
    "lengths of 64 bits": (wide(LENGTH), np.array(WIDE)),
    "starts of 64 bits": (wide(START), np.array(WIDE)),
    "given, and causal": (BOTH, np.random.default_rng(3).random((12, 12)) < 0.3),
}


@pytest.mark.parametrize("name", DATA)
def test_rows_under_masks_of_data(name: str) -> None:
    mask, values = DATA[name]
    func, before = nest(rows(mask, 12, 12))
    tiled = run_steps(before, parse_steps(TILES))
    made = run_steps(tiled, parse_steps("bound r.0"))
    assert limited(made) == 1
    same(made, before, inputs(func, scores(12, 12), values))
    (cut,) = parse_steps("bound r.0 where=cut")
    assert cut.why_not(tiled) == "axis r.0: more than a comparison of positions hides elements"


def test_limits_of_lengths_leave_blocks_out() -> None:
    """A nan in them is not read."""
    func, before = nest(rows(LENGTH, 12, 12))
    made = run_steps(before, parse_steps(f"{TILES}; bound r.0"))
    lengths = np.array([3, 4, 2, 1] * 3, np.int32)
    array = np.zeros((12, 12), np.float32)
    _, plain = nest(rows(LENGTH, 12, 12), TILES)
    for kernel in (plain, made):
        (got,) = results(around(kernel), inputs(func, array, lengths))
        np.testing.assert_array_equal(got, lengths)


LOWEST = str(float(np.finfo(np.float32).min))


@pytest.mark.every(3)
@pytest.mark.parametrize("fill", ["-1e9", "-10000.0", LOWEST])
@pytest.mark.parametrize("name", ["causal", "window", "rows that lose all", "shifted", "negated"])
def test_masks_of_large_numbers(name: str, fill: str) -> None:
    """Rows that lose all keys count all of them."""
    _, before = nest(rows(LIMITS[name], 12, 12, fill))
    made = run_steps(before, parse_steps(f"{TILES}; assume r.0; bound r.0 where=cut"))
    assert limited(made, "branch") == 1 and limited(made) > 1
    near = np.random.default_rng(0).standard_normal((12, 12)).astype(np.float32)
    for array in (scores(12, 12), near, near * 1e4, near * 1e9, near - 1e4, near - 1e9):
        same(made, before, [array])


@pytest.mark.parametrize("name", ["causal", "rows that lose all"])
def test_attention_under_masks_of_large_numbers(name: str) -> None:
    _, before = nest(attention(LIMITS[name], fill="-1e9"))
    made = run_steps(before, parse_steps(f"{FLASH}; assume r.0; bound r.0; branch r.0"))
    rng = np.random.default_rng(1)
    arrays = [rng.standard_normal(s).astype(np.float32) for s in ((10, 4), (11, 4), (11, 4))]
    same(made, before, arrays, 1e-4)


def test_loops_that_share_a_mask() -> None:
    """The loop for the sum reads the maximum, which a loop with the same mask computes."""
    _, before = nest(rows(LIMITS["twice the key"], 6, 7))
    for steps in ("bound r where=cut", "reverse r; bound r where=cut", "bound r"):
        made = run_steps(before, parse_steps(f"vectorize i; block r; {steps}"))
        assert limited(made) > 1
        same(made, before, [scores(6, 7)])
