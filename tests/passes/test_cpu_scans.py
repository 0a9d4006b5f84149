"""Scans on a CPU: vectors that carry one total along a line, or a total for each lane."""

from __future__ import annotations

import numpy as np
import pytest
from cpu_steps import all_nodes, check_steps, lowered, steps_of, widths
from executed import func_of, twice

from stack.ir import Builder, Func, Node
from stack.ir.data import decode, encode
from stack.ir.traits import is_loop, is_running
from stack.run.compile import compile_func

SIZES = (1, 2, 3, 7, 16, 17, 63, 64, 65, 127, 128, 200, 4099)
RUN = {"sum": np.cumsum, "prod": np.cumprod}
RUN |= {"max": np.maximum.accumulate, "min": np.minimum.accumulate}

SCAN = """func @main(%x: i32[5, 192]) -> (i32[5, 192]) at tensor {
  %y = scan(%x) {axis=AXIS, kind="sum", reverse=false} : i32[5, 192]
  return %y
}
"""
STEPS = {
    "1": "split j 32 tail=peel; vectorize j.1; bind i cores",
    "0": "split j 32 tail=peel; vectorize j.1",  # each lane carries a total
}


@pytest.mark.parametrize("axis", STEPS)
def test_steps_before_and_expected(axis: str) -> None:
    check_steps(SCAN.replace("AXIS", axis), STEPS[axis])


def running(kind: str, reverse: bool, shape: tuple[int, ...], dtype: str, axis: int = -1) -> Func:
    def build(b: Builder, x: Node) -> Node:
        return b.scan(x, kind=kind, axis=axis % len(shape), reverse=reverse)

    return func_of(build, [(dtype, *shape)])


@pytest.mark.parametrize("reverse", [False, True])
def test_vectors_carry_one_total(reverse: bool) -> None:
    func = running("sum", reverse, (200,), "i32")
    assert steps_of(func) == ["split i 32 tail=peel", "vectorize i.1"]
    made = lowered(func)
    assert widths(made) == {32, 8}
    (loop,) = (n for n in all_nodes(made) if is_loop(n))
    assert [p.shape for p in loop.blocks[0].params[1:]] == [(), (200,)]
    x = np.arange(200, dtype=np.int32)[::-1] % 7
    turn = slice(None, None, -1 if reverse else 1)
    np.testing.assert_array_equal(made.interpret(x), np.cumsum(x[turn])[turn])


@pytest.mark.parametrize("axis", [0, 1])
def test_only_lanes_are_scanned(axis: int) -> None:
    """Along another axis every lane runs by itself, in a loop."""
    made = lowered(running("sum", False, (40, 130), "f32", axis))
    assert any(map(is_running, all_nodes(made))) == (axis == 1)


@pytest.mark.parametrize("reverse", [False, True])
def test_a_vector_that_holds_the_line_is_scanned_whole(reverse: bool) -> None:
    """Reversed indices do not count as values that a loop keeps in registers."""
    assert widths(lowered(running("sum", reverse, (3, 31), "i32"))) == {31}


@pytest.mark.every(3)
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("kind", RUN)
@pytest.mark.parametrize("dtype", ["f32", "bf16", "f64", "i64", "i8"])
def test_values(kind: str, dtype: str, reverse: bool, rng: np.random.Generator) -> None:
    """Beside f64: running sums of f32 are kept in f64."""
    near = {"f32": 1e-7, "f64": 1e-12, "bf16": 1e-2}.get(dtype, 0)
    turn = slice(None, None, -1 if reverse else 1)
    for size in rng.choice(SIZES, 3, replace=False):
        func = running(kind, reverse, (3, int(size)), dtype)
        (p,) = func.params
        drawn = 1 + rng.standard_normal((3, size)) / 64 if near else rng.integers(-3, 3, (3, size))
        x = decode(encode(drawn.astype(p.dtype.numpy), p.dtype), p.dtype)
        exact = RUN[kind](x[:, turn].astype(np.float64 if near else np.int64), axis=1)[:, turn]
        exact = exact if near else exact.astype(x.dtype)  # integers go round
        for (found,) in twice(compile_func(func, "mlir", options={"cache": False}), func, [x]):
            np.testing.assert_allclose(found.astype(exact.dtype), exact, rtol=near)


@pytest.mark.parametrize("reverse", [False, True])
def test_nan_and_infinities_go_on_and_not_back(reverse: bool) -> None:
    x = np.ones((4, 150), np.float32)
    x[0, 70], x[1, 20], x[1, 130], x[2, 149], x[3] = np.nan, np.inf, -np.inf, np.nan, -0.0
    for kind, run in RUN.items():
        func = running(kind, reverse, x.shape, "f32")
        turn = slice(None, None, -1 if reverse else 1)
        with np.errstate(invalid="ignore"):
            exact = run(x[:, turn], axis=1)[:, turn]
        for (found,) in twice(compile_func(func, "mlir", options={"cache": False}), func, [x]):
            np.testing.assert_array_equal(found, exact)
