"""The text of each stage, that each but the last computes what the program did, and fuel."""

from __future__ import annotations

from stack.ir import Func, parse
from stack.rewrite import Pipeline

BEFORE = """func @f(%x: f32[8, 16], %w: f32[16, 6], %v: f32[6, 16]) -> (f32[8, 16]) at tensor {
  %h = dot(%x, %w) {rule="m k, k n -> m n"} : f32[8, 6]
  %y = dot(%h, %v) {rule="m k, k n -> m n"} : f32[8, 16]
  return %y
}
"""
PROPAGATED = """func @f<@m(dp=2, tp=4)>(%x: f32[8{dp}, 16] @m, %w: f32[16, 6{tp}] @m, %v: f32[6{tp}, 16] @m) -> (f32[8{dp}, 16] @m) at tensor {
  %h = dot(%x, %w) {rule="m k, k n -> m n"} : f32[8{dp}, 6{tp}] @m
  %y = dot(%h, %v) {rule="m k, k n -> m n"} : f32[8{dp}, 16] @m
  return %y
}
"""  # noqa: E501
RESHARDED = """func @f<@m(dp=2, tp=4)>(%x: f32[8{dp}, 16] @m, %w: f32[16, 6{tp}] @m, %v: f32[6{tp}, 16] @m) -> (f32[8{dp}, 16] @m) at tensor {
  %h = dot(%x, %w) {rule="m k, k n -> m n"} : f32[8{dp}, 6{tp}] @m
  %y = dot(%h, %v) {rule="m k, k n -> m n"} : f32[8{dp}, 16] @m + partial(sum: tp)
  %y.at = reshard(%y) : f32[8{dp}, 16] @m
  return %y.at
}
"""  # noqa: E501
PARTITIONED = """func @f(%x: f32[4, 16], %w: f32[16, 2], %v: f32[2, 16]) -> (f32[4, 16]) at tensor {
  %iota = iota() {axis=1} : i64[4, 2]
  %part_held = part_held() {mesh="dp=2, tp=4", over="tp", size=6} : i64[]
  %lt = lt(%iota, %part_held) : bool[4, 2]
  %h = dot(%x, %w) {rule="m k, k n -> m n"} : f32[4, 2]
  %select = select(%lt, %h, 0.0:f32) : f32[4, 2]
  %iota_1 = iota() {axis=0} : i64[2, 16]
  %lt_1 = lt(%iota_1, %part_held) : bool[2, 16]
  %select_1 = select(%lt_1, %v, 0.0:f32) : f32[2, 16]
  %y = dot(%select, %select_1) {rule="m k, k n -> m n"} : f32[4, 16]
  %y.at = all_reduce(%y) {kind="sum", mesh="dp=2, tp=4", over="tp"} : f32[4, 16]
  return %y.at
}
"""
ANNOTATE = 'annotate{mesh="dp=2, tp=4", shard=["x: dp", "w: -, tp"]}'


def after(pipeline: str, check: bool = True) -> Func:
    return Pipeline(pipeline).run(parse(BEFORE), check=check).func


def test_stages() -> None:
    """6 columns over 4 ranks: parts of 2, the last one empty, masked where they are summed."""
    assert str(after(f"{ANNOTATE},propagate")) == PROPAGATED
    assert str(after(f"{ANNOTATE},propagate,reshard")) == RESHARDED
    assert str(after(f"{ANNOTATE},propagate,reshard,spmd", check=False)) == PARTITIONED


def test_each_stage_can_be_read_and_resumed() -> None:
    for text, rest in ((PROPAGATED, "reshard,spmd"), (RESHARDED, "spmd")):
        assert str(Pipeline(rest).run(parse(text)).func) == PARTITIONED


def test_without_a_mesh_or_fuel_nothing_happens() -> None:
    func = parse(BEFORE)
    assert Pipeline("propagate,reshard,spmd").run(func).func is func
    whole = f"{ANNOTATE},propagate,reshard,spmd"
    assert Pipeline(whole).run(func, fuel=0).func is func
    assert str(Pipeline(whole).run(func, fuel=3).func) == RESHARDED
