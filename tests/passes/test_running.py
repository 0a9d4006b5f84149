"""Running values along lanes: chunks by themselves, then with what lies before them."""

from __future__ import annotations

import numpy as np
import pytest
from distributed import distributed
from executed import func_of, twice

from stack import Pipeline
from stack.ir import Builder, Func, Node, parse
from stack.ir.node import walk
from stack.ir.storage import decode, encode
from stack.ir.traits import is_running
from stack.run.compile import compile_func

SIZES = (1, 2, 3, 7, 16, 17, 63, 64, 65, 127, 128, 200, 4099)
RUN = {"sum": np.cumsum, "prod": np.cumprod}
RUN |= {"max": np.maximum.accumulate, "min": np.minimum.accumulate}

BEFORE = """func @main(%x: i32[200]) -> (i32[200]) at tensor {
  %z = kernel(%x) {level="tile", name="scan", ops=["scan"]} : i32[200] \
{(%p0: i32[200] in global, %o0: i32[200] in global)
    %v = load(%p0, 0:i64) : i32<200>
    %s = scan(%v) {axis=0, kind="sum", reverse=REVERSE} : i32<200>
    %store = store(%o0, %s, 0:i64) : i32[200] in global
    return %store
  }
  return %z
}
"""
EXPECTED = """func @main(%x: i32[200]) -> (i32[200]) at tensor {
  %z = kernel(%x) {level="loop", name="scan", ops=["scan"]} : i32[200] \
{(%p0: i32[200] in global, %o0: i32[200] in global)
    %loop = loop(0:i32, %o0) {kind="serial"} : (i32[], i32[200] in global) \
{(%c__1 < 3, %run__3: i32[], %m__2: i32[200] in global)
      %mul = mul(%c__1, 64:i64) : i64[]
      %v_1 = load(%p0, %mul) : i32<64>
      %reduce = reduce(%v_1) {axes=[0], kind="sum"} : i32[]
      %add = add(%run__3, %reduce) : i32[]
      %scan_1 = scan(%v_1) {axis=0, kind="sum", reverse=false} : i32<64>
      %s_1 = add(%scan_1, %run__3) : i32<64>
      %store_1 = store(%m__2, %s_1, %mul) : i32[200] in global
      return %add, %store_1
    }
    %item = item(%loop) {index=1} : i32[200] in global
    %v = load(%p0, 192:i64) : i32<8>
    %scan = scan(%v) {axis=0, kind="sum", reverse=false} : i32<8>
    %item_1 = item(%loop) {index=0} : i32[]
    %s = add(%scan, %item_1) : i32<8>
    %store = store(%item, %s, 192:i64) : i32[200] in global
    return %store
  }
  return %z
}
"""


def running(kind: str, reverse: bool, shape: tuple[int, ...], dtype: str, axis: int = -1) -> Func:
    def build(b: Builder, x: Node) -> Node:
        return b.scan(x, kind=kind, axis=axis % len(shape), reverse=reverse)

    return func_of(build, [(dtype, *shape)])


def test_chunks_carry_what_they_come_to_before_and_expected() -> None:
    made = distributed(BEFORE.replace("REVERSE", "false"))
    assert str(made) == str(parse(EXPECTED))
    back = distributed(BEFORE.replace("REVERSE", "true"))
    assert "sub(2:i64, %c__1)" in str(back)
    x = np.arange(200, dtype=np.int32)[::-1] % 7
    assert np.array_equal(made.interpret(x), np.cumsum(x))
    assert np.array_equal(back.interpret(x), np.cumsum(x[::-1])[::-1])


@pytest.mark.parametrize("axis", [0, 1])
def test_lanes_alone_are_scanned(axis: int) -> None:
    """Along another axis every lane runs by itself, in a loop."""
    func = running("sum", False, (40, 130), "f32", axis)
    made = Pipeline("tile,distribute").run(func).func
    scans = [n for block, _ in walk(made.body) for n in block.nodes if is_running(n)]
    assert bool(scans) == (axis == 1)


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
