"""Loops that run over a part of their extent; blocks that pass the end of a memory."""

from __future__ import annotations

import numpy as np
import pytest

from stack.errors import StackError, VerifyError
from stack.ir import Func, parse, verify

SUM = """
func @main(%x: f32[12], %first: i32[], %end: i32[]) -> (f32[]) at tensor {
  %k = kernel(%x, %first, %end) {level="tile", name="k"} : f32[] {(%x: f32[12] in global,
    %first: i32[] in global, %end: i32[] in global, %o: f32[] in global)
    %a = load(%first) : i32[]
    %b = load(%end) : i32[]
    %sum = loop(%a, %b, 0.0:f32) {kind="serial", limited=true} : f32[] {(%i < 12: i32, %acc: f32[])
      %v = load(%x, %i) : f32[]
      %next = add(%acc, %v) : f32[]
      return %next
    }
    %store = store(%o, %sum) : f32[] in global
    return %store
  }
  return %k
}
"""
COPY = """
func @main(%x: f32[5, 7]) -> (f32[5, 7]) at tensor {
  %k = kernel(%x) {level="tile", name="k"} : f32[5, 7] {(%x: f32[5, 7] in global,
    %o: f32[5, 7] in global)
    %done = loop(%o) {kind="grid"} : f32[5, 7] in global {(%p < 2: i32,
      %m: f32[5, 7] in global)
      %row = mul(%p, 4:i32) : i32[]
      %tile = load(%x, %row, 0:i32) {clip=true} : f32<4x8>
      %total = reduce(%tile) {axes=[1], kind="sum"} : f32<4>
      %wide = broadcast(%total) {axes=[0]} : f32<4x8>
      %store = store(%m, %wide, %row, 0:i32) {clip=true} : f32[5, 7] in global
      return %store
    }
    return %done
  }
  return %k
}
"""


def checked(text: str) -> Func:
    """The function of a text, verified and printed losslessly."""
    func = parse(text)
    verify(func)
    assert parse(str(func)) is func
    return func


@pytest.mark.parametrize(("first", "end"), [(0, 12), (3, 7), (11, 12), (5, 5), (7, 3), (0, 0)])
def test_a_limited_loop_runs_from_its_first_step_to_its_end(
    first: int, end: int, rng: np.random.Generator
) -> None:
    x = rng.standard_normal(12).astype(np.float32)
    found = checked(SUM).interpret(x, np.int32(first), np.int32(end))
    np.testing.assert_allclose(found, x.astype(np.float64)[first:end].sum(), rtol=1e-5, atol=1e-6)


def test_limits_have_the_type_of_the_index() -> None:
    with pytest.raises(StackError, match="its first step and its end first"):
        checked(SUM.replace("< 12: i32", "< 12: i64"))


def test_a_loop_without_the_mark_takes_its_operands_as_carried() -> None:
    with pytest.raises(StackError, match="carries"):
        checked(SUM.replace(", limited=true", ""))


@pytest.mark.parametrize("taken", [0, 1])
def test_a_branch_runs_once_or_not(taken: int, rng: np.random.Generator) -> None:
    text = SUM.replace("serial", "branch").replace("< 12: i32", "< 1: i32")
    x = rng.standard_normal(12).astype(np.float32)
    found = checked(text).interpret(x, np.int32(0), np.int32(taken))
    np.testing.assert_array_equal(found, x[0] if taken else 0)
    for wrong in (SUM.replace("serial", "branch"), text.replace(", limited=true", "")):
        with pytest.raises(StackError, match="one iteration at most"):
            checked(wrong)


def test_past_the_end_reads_0_and_writes_nothing(rng: np.random.Generator) -> None:
    x = rng.standard_normal((5, 7)).astype(np.float32)
    want = np.repeat(x.astype(np.float64).sum(1)[:, None], 7, 1)
    np.testing.assert_allclose(checked(COPY).interpret(x), want, rtol=1e-5, atol=1e-6)


def test_without_clip_past_the_end_is_an_error() -> None:
    with pytest.raises(VerifyError, match=r"axis 0 of f32\[5, 7\] in global .* from 0 to 7"):
        checked(COPY.replace(" {clip=true}", ""))


@pytest.mark.parametrize(
    ("old", "new", "where"),
    [
        ("mul(%p, 4:i32)", "add(%p, 4:i32)", "from 4 to 8"),
        ("mul(%p, 4:i32)", "sub(%p, 1:i32)", "from -1 to 3"),
        ("load(%x, %row, 0:i32)", "load(%x, %row, 1:i32)", "axis 1 .* from 1 to 8"),
        ("load(%x, %row, 0:i32)", "load(%x, 7:i32, 0:i32)", "axis 0 .* from 7 to 10"),
        ("< 2: i32", "< 2000000: i32", "axis 0"),
    ],
)
def test_an_index_that_is_known_stays_inside(old: str, new: str, where: str) -> None:
    text = COPY.replace(" {clip=true}", "").replace("f32[5, 7]", "f32[8, 8]")
    checked(text)
    with pytest.raises(VerifyError, match=where):
        checked(text.replace(old, new))


@pytest.mark.parametrize("op", ["sub", "mul", "add"])
def test_what_may_cancel_is_not_called_wrong(op: str) -> None:
    """The bounds of p - p are not reached at either end of the ranges."""
    text = COPY.replace("mul(%p, 4:i32)", f"{op}(%p, %p)")
    checked(text.replace(" {clip=true}", "").replace("f32[5, 7]", "f32[6, 8]"))


@pytest.mark.parametrize("index", [-1, 12])
def test_an_index_from_data_is_looked_at_when_it_is_read(index: int) -> None:
    """NumPy would count a negative one from the end; machine code does not."""
    func = checked("""
func @main(%x: f32[12], %i: i32[]) -> (f32[]) at tensor {
  %k = kernel(%x, %i) {level="loop", name="k"} : f32[] {(%x: f32[12] in global,
    %i: i32[] in global, %o: f32[] in global)
    %at = load(%i) : i32[]
    %v = load(%x, %at) : f32[]
    %store = store(%o, %v) : f32[] in global
    return %store
  }
  return %k
}
""")
    x = np.arange(12, dtype=np.float32)
    assert func.interpret(x, np.int32(11)) == 11
    with pytest.raises(IndexError, match=f"index {index}"):
        func.interpret(x, np.int32(index))


@pytest.mark.parametrize("index", ["-1:i64", "5:i64"])
def test_constant_indices_of_a_gather_stay_inside(index: str) -> None:
    text = """
func @main(%x: f32[5, 7]) -> (f32[7]) at tensor {
  %y = gather(%x, 4:i64) {rule="a! b,  -> b"} : f32[7]
  return %y
}
"""
    checked(text)
    with pytest.raises(VerifyError, match="axis 0"):
        checked(text.replace("4:i64", index))


def test_memory_of_a_thread_has_a_limit() -> None:
    text = """
func @main(%x: f32[5]) -> (f32[5]) at tensor {
  %k = kernel(%x) {level="loop", name="k"} : f32[5] {(%x: f32[5] in global, %o: f32[5] in global)
    %m = alloc() {name="m"} : f32[64] in local
    %v = load(%x, 0:i64) : f32<5>
    %n = store(%m, %v, 0:i64) : f32[64] in local
    %w = load(%n, 0:i64) : f32<5>
    %store = store(%o, %w, 0:i64) : f32[5] in global
    return %store
  }
  return %k
}
"""
    checked(text)
    with pytest.raises(VerifyError, match="at most"):
        checked(text.replace("f32[64]", "f32[64000000]"))
