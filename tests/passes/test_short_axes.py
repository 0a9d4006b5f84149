"""Last axes shorter than a vector: what tells them from the one before is stretched, or stays."""

from __future__ import annotations

import numpy as np
import pytest

from stack.ir import Func, parse
from stack.rewrite import Pipeline
from stack.target import as_cpu

# of a group norm of an image with channels last: 6 groups of 4 channels
MEAN = """func @f(%x: T[2, 64, 6, 4]) -> (T[2, 6]) at tensor {
  %y = fusion(%x) {kind="reduction", name="mean"} : T[2, 6] {(%p0: T[2, 64, 6, 4])
    %s = reduce(%p0) {axes=[1, 3], kind="sum"} : T[2, 6]
    %m = mul(%s, 0.00390625:T) : T[2, 6]
    return %m
  }
  return %y
}
"""
MEAN_AFTER = """func @f(%x: f32[2, 64, 6, 4]) -> (f32[2, 6]) at tensor {
  %reshape = reshape(%x) : f32[2, 64, 24]
  %fusion = fusion(%reshape) {kind="reduction", name="mean"} : f32[2, 24] {(%p0: f32[2, 64, 24])
    %reduce = reduce(%p0) {axes=[1], kind="sum"} : f32[2, 24]
    return %reduce
  }
  %reshape_1 = reshape(%fusion) : f32[12, 4]
  %y = fusion(%reshape_1) {kind="reduction", name="mean_end"} : f32[12] {(%s0: f32[12, 4])
    %s = reduce(%s0) {axes=[1], kind="sum"} : f32[12]
    %m = mul(%s, 0.00390625:f32) : f32[12]
    return %m
  }
  %y_1 = reshape(%y) : f32[2, 6]
  return %y_1
}
"""
NORM = """func @f(%x: f32[2, 64, 6, 4], %m: f32[2, 6], %w: f32[6, 4]) -> \
(f32[2, 64, 6, 4]) at tensor {
  %y = fusion(%x, %m, %w) {kind="loop", name="norm"} : f32[2, 64, 6, 4] \
{(%p0: f32[2, 64, 6, 4], %p1: f32[2, 6], %p2: f32[6, 4])
    %e = exp(%p1) : f32[2, 6]
    %b = broadcast(%e) {axes=[0, 2]} : f32[2, 64, 6, 4]
    %d = sub(%p0, %b) : f32[2, 64, 6, 4]
    %c = broadcast(%p2) {axes=[2, 3]} : f32[2, 64, 6, 4]
    %y = mul(%d, %c) : f32[2, 64, 6, 4]
    return %y
  }
  return %y
}
"""
NORM_AFTER = """func @f(%x: f32[2, 64, 6, 4], %m: f32[2, 6], %w: f32[6, 4]) -> \
(f32[2, 64, 6, 4]) at tensor {
  %reshape = reshape(%x) : f32[2, 64, 24]
  %reshape_1 = reshape(%m) : f32[12]
  %fusion = fusion(%reshape_1) {kind="loop", name="stretch"} : f32[12, 4] {(%p1: f32[12])
    %exp = exp(%p1) : f32[12]
    %broadcast = broadcast(%exp) {axes=[0]} : f32[12, 4]
    return %broadcast
  }
  %reshape_2 = reshape(%fusion) : f32[2, 24]
  %reshape_3 = reshape(%w) : f32[24]
  %y = fusion(%reshape, %reshape_2, %reshape_3) {kind="loop", name="norm"} : f32[2, 64, 24] \
{(%p0: f32[2, 64, 24], %w0: f32[2, 24], %p2: f32[24])
    %broadcast = broadcast(%w0) {axes=[0, 2]} : f32[2, 64, 24]
    %d = sub(%p0, %broadcast) : f32[2, 64, 24]
    %broadcast_1 = broadcast(%p2) {axes=[2]} : f32[2, 64, 24]
    %y = mul(%d, %broadcast_1) : f32[2, 64, 24]
    return %y
  }
  %y_1 = reshape(%y) : f32[2, 64, 6, 4]
  return %y_1
}
"""
MEAN_F32 = MEAN.replace("T[", "f32[").replace(":T", ":f32")
REWRITES = {"mean": (MEAN_F32, MEAN_AFTER), "norm": (NORM, NORM_AFTER)}
KEPT = {
    "a whole vector": NORM.replace("4]", "16]"),
    "what would be stretched is as large as the space": NORM.replace("64, ", "1, "),
    "it is the reduced axis alone": MEAN_F32.replace("axes=[1, 3]", "axes=[3]").replace(
        "[2, 6]", "[2, 64, 6]"
    ),
    "the reduction keeps no axis before it": MEAN_F32.replace(
        "axes=[1, 3]", "axes=[1, 2, 3]"
    ).replace("[2, 6]", "[2]"),
    "last axes differ": NORM.replace(
        "%e = exp(%p1) : f32[2, 6]\n    %b = broadcast(%e) {axes=[0, 2]} : f32[2, 64, 6, 4]",
        "%i = iota() {axis=0} : i64[6]\n    %j = cast(%i) : f32[6]\n"
        "    %r = reverse(%p0) {axes=[2]} : f32[2, 64, 6, 4]\n"
        "    %q = broadcast(%j) {axes=[2]} : f32[2, 64, 6, 4]\n"
        "    %b = mul(%r, %q) : f32[2, 64, 6, 4]",
    ),
}


def coalesced(text: str) -> Func:
    return Pipeline("coalesce").run(parse(text), target=as_cpu(None), check=True).func


@pytest.mark.parametrize("name", REWRITES)
def test_rewrites(name: str) -> None:
    before, after = REWRITES[name]
    made = coalesced(before)
    assert str(made) == after
    assert str(coalesced(after)) == after


@pytest.mark.parametrize("name", REWRITES)
def test_a_gpu_masks_short_axes(name: str) -> None:
    before = parse(REWRITES[name][0])
    made = Pipeline("coalesce").run(before).func
    assert [n.op for n in made.nodes].count("fusion") == 1


@pytest.mark.parametrize("name", KEPT)
def test_kept(name: str) -> None:
    made = coalesced(KEPT[name])
    assert [n.op for n in made.nodes].count("fusion") == 1


def test_sums_of_sixteen_bits_are_rounded_once() -> None:
    made = coalesced(MEAN.replace("T[", "bf16[").replace(":T", ":bf16"))
    first, last = (n for n in made.nodes if n.op == "fusion")
    assert str(first.type) == "f32[2, 24]"
    assert [n.op for n in last.blocks[0].nodes][:2] == ["reduce", "cast"]


@pytest.mark.parametrize("special", [np.inf, -np.inf, np.nan])
def test_what_is_not_finite_stays_in_its_group(special: float) -> None:
    x = np.zeros((2, 64, 6, 4), np.float32)
    x[1, 63, 5, 3] = special
    wanted = x.sum((1, 3)) / 256
    np.testing.assert_array_equal(coalesced(MEAN_F32).interpret(x), wanted)


LONG = """func @f(%x: f32[SIZE, 6, 4], %m: f32[6]) -> (f32[6]) at tensor {
  %b = broadcast(%m) {axes=[1]} : f32[SIZE, 6, 4]
  %d = sub(%x, %b) : f32[SIZE, 6, 4]
  %y = reduce(%d) {axes=[0, 2], kind="sum"} : f32[6]
  return %y
}
"""


def test_few_long_lines_are_parts_for_threads() -> None:
    """Lines of one image, where groups were programs, are split, and stretched as others are."""
    func = parse(LONG.replace("SIZE", "16384"))
    made = Pipeline("split_reductions,fuse,coalesce").run(func, target=as_cpu(None), check=True)
    groups = [n for n in made.func.nodes if n.op == "fusion"]
    assert [str(g.type) for g in groups][:2] == ["f32[6, 4]", "f32[32, 24]"]
    assert len(groups) == 4


def test_a_prime_number_of_lines_is_not_cut() -> None:
    func = parse(LONG.replace("SIZE", "16381"))
    assert Pipeline("split_reductions").run(func, target=as_cpu(None)).func is func
