"""Scans on a GPU: the steps of the policy, the values of each kernel, and what is refused."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from nest_cases import around, group_in

from stack.ir import Builder, Func, Node, param, parse, tensor, verify
from stack.ir.data import decode, encode
from stack.ir.kernel_ops import access_parts
from stack.ir.node import walk
from stack.ir.traits import is_load, is_store
from stack.passes.policies.lowerings import lowering_of
from stack.passes.policies.scans import GpuScans, leaves_idle
from stack.passes.tiling.frame import CannotTile
from stack.passes.tiling.single_ops import alone, is_bare
from stack.rewrite import Pipeline
from stack.target import Gpu, as_gpu

GPU = as_gpu(None)
Scan = tuple[str, tuple[int, ...], int, str, bool]  # type, shape, axis, kind, reverse

EXPECTED = """func @main(%x: f32[3, 10]) -> (f32[3, 10]) at tensor {
  %z = kernel(%x) {level="tile", name="scan", ops=["scan"], stages=2, warps=1} : f32[3, 10] {(%p0: f32[3, 10] in global, %o0: f32[3, 10] in global)
    %loop = loop(%o0) {kind="grid"} : f32[3, 10] in global {(%i < 3: i32, %o0_1: f32[3, 10] in global)
      %loop_1 = loop(0.0:f32, %o0_1) {kind="serial"} : (f32[], f32[3, 10] in global) {(%j.0 < 3: i32, %acc_1: f32[], %o_1: f32[3, 10] in global)
        %mul = mul(%j.0, 4:i32) : i32[]
        %load = load(%p0, %i, %mul) {clip=true} : f32<4>
        %reduce = reduce(%load) {axes=[0], kind="sum"} : f32[]
        %add = add(%acc_1, %reduce) : f32[]
        %scan = scan(%load) {axis=0, kind="sum", reverse=false} : f32<4>
        %add_1 = add(%acc_1, %scan) : f32<4>
        %store = store(%o_1, %add_1, %i, %mul) {clip=true} : f32[3, 10] in global
        return %add, %store
      }
      %item = item(%loop_1) {index=1} : f32[3, 10] in global
      return %item
    }
    return %loop
  }
  return %z
}
"""  # noqa: E501
BACKWARDS = """func @main(%x: f32[3, 10]) -> (f32[3, 10]) at tensor {
  %z = kernel(%x) {level="tile", name="scan", ops=["scan"], stages=2, warps=1} : f32[3, 10] {(%p0: f32[3, 10] in global, %o0: f32[3, 10] in global)
    %loop = loop(%o0) {kind="grid"} : f32[3, 10] in global {(%i < 3: i32, %o0_1: f32[3, 10] in global)
      %loop_1 = loop(0.0:f32, %o0_1) {kind="serial"} : (f32[], f32[3, 10] in global) {(%j.0 < 3: i32, %acc_1: f32[], %o_1: f32[3, 10] in global)
        %mul = mul(%j.0, -4:i32) : i32[]
        %add = add(%mul, 8:i32) : i32[]
        %load = load(%p0, %i, %add) {clip=true} : f32<4>
        %reduce = reduce(%load) {axes=[0], kind="sum"} : f32[]
        %add_1 = add(%acc_1, %reduce) : f32[]
        %scan = scan(%load) {axis=0, kind="sum", reverse=true} : f32<4>
        %add_2 = add(%acc_1, %scan) : f32<4>
        %store = store(%o_1, %add_2, %i, %add) {clip=true} : f32[3, 10] in global
        return %add_1, %store
      }
      %item = item(%loop_1) {index=1} : f32[3, 10] in global
      return %item
    }
    return %loop
  }
  return %z
}
"""  # noqa: E501

STEPS: dict[str, tuple[Scan, str]] = {
    "a line in three tiles": (
        ("f32", (512, 10000), 1, "sum", False),
        "split j 4096; vectorize j.1; bind i grid; launch 8",
    ),
    "backwards": (
        ("f32", (512, 10000), 1, "sum", True),
        "split j 4096 tail=front; vectorize j.1; bind i grid; launch 8",
    ),
    "backwards in whole tiles": (
        ("f32", (512, 8192), 1, "sum", True),
        "split j 4096; vectorize j.1; bind i grid; launch 8",
    ),
    "several lines in a tile": (
        ("f32", (1024, 100), 1, "prod", False),
        "split i 4; split j 128; vectorize j.1; vectorize i.1; bind i.0 grid; launch 1",
    ),
    "along columns": (
        ("bf16", (100, 1024), 0, "sum", True),
        "split i 128 tail=front; split j 4; vectorize j.1; vectorize i.1; bind j.0 grid; launch 1",
    ),
    "in the middle": (
        ("f32", (256, 30, 5), 1, "sum", False),
        "split j 32; split k 8; vectorize k.1; vectorize j.1; bind i grid; launch 1",
    ),
    "one line": (("i64", (5000,), 0, "sum", False), "split i 4096; vectorize i.1; launch 8"),
    "one element of each line": (("f32", (3, 1), 1, "sum", False), "bind i grid; launch 1"),
    "one element": (("f32", (1,), 0, "sum", True), "launch 1"),
}
REFUSED: dict[str, tuple[Scan, str]] = {
    "a maximum": (("f32", (4, 30), 1, "max", False), "no tile is scanned for the max of f32"),
    "a minimum": (("f32", (4, 30), 1, "min", True), "no tile is scanned for the min of f32"),
    "8 bits": (("i8", (4, 30), 1, "sum", False), "no tile is scanned for the sum of i8"),
    "complex": (("c64", (4, 30), 1, "sum", False), "complex numbers"),
    "few long lines": (
        ("f32", (2, 1 << 20), 1, "sum", False),
        "2 lines of 1048576 leave most programs idle",
    ),
}


def scan_of(dtype: str, shape: tuple[int, ...], axis: int, kind: str, reverse: bool) -> Func:
    b = Builder()
    x = param("x", tensor(dtype, *shape))
    made = b.scan(x, kind=kind, axis=axis, reverse=reverse)
    b.names[made] = "z"
    return b.func("main", [x], [made])


def with_tile(tile: int) -> Gpu:
    """A GPU whose scans have tiles of so many elements."""
    return replace(GPU, scans=replace(GPU.scans, tile=tile))


def lowering(group: Node, gpu: Gpu = GPU) -> GpuScans:
    made = lowering_of(alone(group) if is_bare(group) else group, gpu)
    assert isinstance(made, GpuScans)
    return made


def lowered(func: Func, gpu: Gpu = GPU) -> Node:
    result = Pipeline("blocks").run(func, target=gpu).func
    verify(result)
    assert parse(str(result)) is result
    return result.body.results[0]


def check(
    func: Func,
    x: np.ndarray,
    axis: int,
    kind: str,
    reverse: bool,
    rtol: float,
    gpu: Gpu = GPU,
) -> None:
    """The nest, and the kernel after each step, agree with numpy in f64."""
    turned = np.flip(x, axis) if reverse else x
    wide = turned.astype(np.float64 if x.dtype.kind == "f" else x.dtype)
    with np.errstate(all="ignore"):
        want = (np.cumsum if kind == "sum" else np.cumprod)(wide, axis)
        want = np.flip(want, axis) if reverse else want
        for _, _, kernel in lowering(func.results[0], gpu).made().done:
            got = np.asarray(around(kernel).interpret(x), want.dtype)
            np.testing.assert_allclose(got, want, rtol=rtol, atol=rtol)


@pytest.mark.parametrize("reverse", [False, True])
def test_before_and_expected(reverse: bool) -> None:
    """A line in three tiles, which carries its sum so far."""
    func, gpu = scan_of("f32", (3, 10), 1, "sum", reverse), with_tile(4)
    result = Pipeline("blocks").run(func, target=gpu).func
    assert str(result) == str(parse(BACKWARDS if reverse else EXPECTED))
    assert Pipeline("blocks").run(result, target=gpu).func is result


@pytest.mark.parametrize("name", STEPS)
def test_steps(name: str) -> None:
    scan, steps = STEPS[name]
    made = lowering(scan_of(*scan).results[0]).made().done
    assert "; ".join(text for text, _, _ in made[1:]) == steps
    assert all(why for _, why, _ in made[1:])


@pytest.mark.parametrize("name", REFUSED)
def test_others_are_left_to_a_library(name: str) -> None:
    scan, why = REFUSED[name]
    func = scan_of(*scan)
    with pytest.raises(CannotTile, match=why):
        lowering(func.results[0]).kernel()
    assert lowered(func).op == "scan"


def test_as_many_long_lines_as_processors_are_ours() -> None:
    for lines, is_ours in ((GPU.processors - 1, False), (GPU.processors, True)):
        func = scan_of("f32", (lines, 1 << 17), 1, "sum", False)
        assert leaves_idle(func.results[0], GPU) != is_ours
        assert lowered(func).op == ("kernel" if is_ours else "scan")


@pytest.mark.every(5)
@pytest.mark.parametrize("tile", [4, 64, 4096])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("kind", ["sum", "prod"])
@pytest.mark.parametrize(
    ("shape", "axis"),
    [((1, 1), 0), ((1, 7), 1), ((37,), 0), ((5, 37), 1), ((37, 5), 0), ((2, 21, 3), 1)],
)
def test_values(
    shape: tuple[int, ...],
    axis: int,
    kind: str,
    reverse: bool,
    tile: int,
    rng: np.random.Generator,
) -> None:
    func = scan_of("f32", shape, axis, kind, reverse)
    assert lowered(func, with_tile(tile)).op == "kernel"
    x = (1 + 0.1 * rng.standard_normal(shape)).astype(np.float32)
    check(func, x, axis, kind, reverse, 1e-5, with_tile(tile))


@pytest.mark.every(3)
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize(("shape", "axis"), [((270, 3), 1), ((3, 270), 0), ((135, 3, 2), 1)])
def test_values_of_several_lines_in_a_tile(
    shape: tuple[int, ...], axis: int, reverse: bool, rng: np.random.Generator
) -> None:
    func = scan_of("f32", shape, axis, "sum", reverse)
    x = (1 + 0.1 * rng.standard_normal(shape)).astype(np.float32)
    check(func, x, axis, "sum", reverse, 1e-5)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("dtype", ["f16", "bf16", "f64", "i16", "i32", "i64"])
def test_element_types(dtype: str, reverse: bool, rng: np.random.Generator) -> None:
    func = scan_of(dtype, (5, 29), 1, "sum", reverse)
    stored = func.params[0].dtype
    x = decode(encode(rng.integers(-9, 9, (5, 29)).astype(stored.numpy), stored), stored)
    # sums of small whole numbers are exact in f32, and nearly so in bf16
    check(func, x, 1, "sum", reverse, 1e-2 if dtype == "bf16" else 0, with_tile(8))


@pytest.mark.parametrize(("dtype", "total"), [("f32", "f32"), ("bf16", "f32"), ("f64", "f64")])
def test_totals_of_f32_stay_f32(dtype: str, total: str) -> None:
    """GPUs have few units for f64."""
    kernel = lowered(scan_of(dtype, (2, 5000), 1, "sum", False))
    found = {str(n.dtype) for _, n in walk(kernel.blocks[0]) if n.op in ("scan", "reduce")}
    assert found == {total}


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("size", [2, 31, 4096, 5000, 20000])
def test_blocks_are_aligned(size: int, reverse: bool) -> None:
    """Loads and stores are blocks without a mask of their own, from multiples of a block."""
    kernel = lowered(scan_of("f32", (3, size), 1, "sum", reverse))
    found = [n for _, n in walk(kernel.blocks[0]) if is_load(n) or is_store(n)]
    assert len(found) == 2
    block = min(4096, max(2, 1 << (size - 1).bit_length()))
    for node in found:
        index, mask, _ = access_parts(node)
        assert mask is None
        assert bool(node.attrs.get("clip")) == bool(size % block)
        if size > block:
            assert f"{block}:i32" in str(around(kernel))
        assert not index[-1].tensor.rank


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("kind", ["sum", "prod"])
def test_infinite_values(kind: str, reverse: bool) -> None:
    x = np.ones((4, 11), np.float32)
    x[0, 5], x[1, 2], x[1, 9], x[2, 6] = np.inf, np.inf, -np.inf, np.nan
    x[3, 3], x[3, 8] = 0, np.inf
    check(scan_of("f32", (4, 11), 1, kind, reverse), x, 1, kind, reverse, 1e-6, with_tile(4))


def test_operands_are_computed_in_the_tile(rng: np.random.Generator) -> None:
    group = group_in("""func @f(%x: f32[8, 100], %w: f32[100]) -> (f32[8, 100]) at tensor {
  %f = fusion(%x, %w) {kind="loop", name="running"} : f32[8, 100] {(%p0: f32[8, 100], %p1: f32[100])
    %e = exp(%p0) : f32[8, 100]
    %b = broadcast(%p1) {axes=[1]} : f32[8, 100]
    %m = mul(%e, %b) : f32[8, 100]
    %y = scan(%m) {axis=1, kind="sum", reverse=true} : f32[8, 100]
    return %y
  }
  return %f
}
""")
    x, w = (rng.standard_normal(s).astype(np.float32) for s in ((8, 100), (100,)))
    want = np.cumsum((np.exp(x) * w)[:, ::-1].astype(np.float64), 1)[:, ::-1]
    for _, _, kernel in lowering(group).made().done:
        found = np.asarray(around(kernel).interpret(x, w))
        np.testing.assert_allclose(found, want, rtol=1e-4, atol=1e-4)
