"""Running sums and products as kernels of a GPU."""

from __future__ import annotations

import numpy as np
import pytest

from stack.ir import Builder, Func, Node, param, parse, tensor, verify
from stack.ir.data import round_bf16
from stack.passes.blocking import scan as block_scan
from stack.rewrite import Pipeline

EXPECTED = """func @main(%x: f32[3, 10]) -> (f32[3, 10]) at tensor {
  %z = kernel(%x) {level="tile", name="scan", ops=["scan"], stages=2, warps=2} : A
    {(%p0: f32[3, 10] in global, %o0: f32[3, 10] in global)
    %in_s = iota() {axis=0} : i32<4>
    %loop = loop(%o0) {kind="grid"} : f32[3, 10] in global {(%p_i1 < 3: i32,
      %o0_0: f32[3, 10] in global)
      %loop_1 = loop(%o0_0, 0.0:f32) {kind="serial"} : (f32[3, 10] in global, f32[]) {
        (%step3 < 3: i32, %o_w3: f32[3, 10] in global, %before3: f32[])
        %mul = mul(%step3, 4:i32) : i32[]
        %at_s = add(%mul, %in_s) : i32<4>
        %lt = lt(%at_s, 10:i32) : bool<4>
        %load = load(%p0, %p_i1, %mul) {clip=true} : f32<4>
        %select = select(%lt, %load, 0.0:f32) : f32<4>
        %scan = scan(%select) {axis=0, kind="sum", reverse=false} : f32<4>
        %add = add(%before3, %scan) : f32<4>
        %store = store(%o_w3, %add, %p_i1, %mul) {clip=true} : f32[3, 10] in global
        %reduce = reduce(%select) {axes=[0], kind="sum"} : f32[]
        %add_1 = add(%before3, %reduce) : f32[]
        return %store, %add_1
      }
      %item = item(%loop_1) {index=0} : f32[3, 10] in global
      return %item
    }
    return %loop
  }
  return %z
}
""".replace(" : A\n    {(", " : f32[3, 10] {(").replace("{\n        (", "{(")


def scan_of(dtype: str, shape: tuple[int, ...], axis: int, kind: str, reverse: bool) -> Func:
    b = Builder()
    x = param("x", tensor(dtype, *shape))
    made = b.scan(x, kind=kind, axis=axis, reverse=reverse)
    b.names[made] = "z"
    return b.func("main", [x], [made])


def lowered(func: Func) -> Node:
    result = Pipeline("blocks").run(func).func
    verify(result)
    assert parse(str(result)) is result
    return result.body.results[0]


def test_before_and_expected(monkeypatch: pytest.MonkeyPatch) -> None:
    """A line in three tiles, which carries its sum so far."""
    monkeypatch.setattr(block_scan, "TILE", 4)
    result = Pipeline("blocks").run(scan_of("f32", (3, 10), 1, "sum", False)).func
    assert str(result) == str(parse(EXPECTED))
    assert Pipeline("blocks").run(result).func is result


@pytest.mark.parametrize("tile", [4, 64, 4096])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("kind", ["sum", "prod"])
@pytest.mark.parametrize(
    ("shape", "axis"),
    [((1, 1), 0), ((1, 7), 1), ((37,), 0), ((5, 37), 1), ((37, 5), 0), ((3, 41, 6), 1)],
)
def test_values(
    shape: tuple[int, ...],
    axis: int,
    kind: str,
    reverse: bool,
    tile: int,
    rng: np.random.Generator,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(block_scan, "TILE", tile)
    func = scan_of("f32", shape, axis, kind, reverse)
    assert lowered(func).op == "kernel"
    x = (1 + 0.1 * rng.standard_normal(shape)).astype(np.float32)
    check(func, x, axis, kind, reverse, 1e-5)


def check(func: Func, x: np.ndarray, axis: int, kind: str, reverse: bool, rtol: float) -> None:
    turned = np.flip(x, axis) if reverse else x
    wide = turned.astype(np.float64 if x.dtype.kind == "f" else x.dtype)
    with np.errstate(all="ignore"):
        want = (np.cumsum if kind == "sum" else np.cumprod)(wide, axis)
        got = Pipeline("blocks").run(func).func.interpret(x)
    want = np.flip(want, axis) if reverse else want
    np.testing.assert_allclose(np.asarray(got, want.dtype), want, rtol=rtol, atol=rtol)


@pytest.mark.parametrize("dtype", ["bf16", "f64", "i32", "i64"])
def test_element_types(
    dtype: str, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(block_scan, "TILE", 8)
    x = rng.integers(-9, 9, (5, 29))
    if dtype[0] == "i":
        x = x.astype({"i32": np.int32, "i64": np.int64}[dtype])
    else:
        x = round_bf16(x.astype(np.float32)) if dtype == "bf16" else x.astype(np.float64)
    # sums of small whole numbers are exact in f32, and nearly so in bf16
    check(scan_of(dtype, (5, 29), 1, "sum", False), x, 1, "sum", False, 1e-2)


@pytest.mark.parametrize("kind", ["sum", "prod"])
def test_infinite_values(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(block_scan, "TILE", 4)
    x = np.ones((4, 11), np.float32)
    x[0, 5], x[1, 2], x[1, 9], x[2, 6] = np.inf, np.inf, -np.inf, np.nan
    x[3, 3], x[3, 8] = 0, np.inf
    check(scan_of("f32", (4, 11), 1, kind, False), x, 1, kind, False, 1e-6)


@pytest.mark.parametrize(
    ("dtype", "shape", "kind"),
    [("f32", (4, 30), "max"), ("f32", (4, 30), "min"), ("i8", (4, 30), "sum"),
     ("f32", (2, 1 << 20), "sum")],
)  # fmt: skip
def test_others_are_left_to_a_library(dtype: str, shape: tuple[int, ...], kind: str) -> None:
    assert lowered(scan_of(dtype, shape, 1, kind, False)).op == "scan"


def test_many_long_lines_are_ours() -> None:
    assert lowered(scan_of("f32", (4096, 1 << 17), 1, "sum", False)).op == "kernel"
