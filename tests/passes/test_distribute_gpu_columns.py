"""Reductions down columns on a GPU: warps share long loops, and only those."""

from __future__ import annotations

import numpy as np
import pytest
from gpu_cases import backwards, gpu_func
from kernel_cases import Spec, column_softmax, column_sum, group_of, random_array

from stack.ir import Builder, Func, Node, parse, verify
from stack.passes.distribute_gpu import DistributeGpu
from stack.rewrite.pipeline import Pipeline

HEAD = """func @main(%x: f32[64, 7]) -> (f32[7]) at tensor {{
  %y = kernel(%x) {{level="{level}", name="sum", ops=["reduce"]}} : f32[7] \
{{(%p0: f32[64, 7] in global, %o0: f32[7] in global)
"""
TAIL = """  }
  return %y
}
"""
BEFORE = """    %t = iota() {axis=0} : i64<7>
    %zero = broadcast(0.0:f32) {axes=[]} : f32<7>
    %sum = loop(%zero) {kind="serial"} : f32<7> {(%r < 64, %acc: f32<7>)
      %v = load(%p0, %r, 0:i64) : f32<7>
      %add = add(%acc, %v) : f32<7>
      return %add
    }
    %out = store(%o0, %sum, 0:i64) : f32[7] in global
    return %out
"""
EXPECTED = """    %zero = broadcast(0.0:f32) {axes=[]} : f32<1>
    %loop = loop(%o0) {kind="grid"} : f32[7] in global {(%block < 1, %o0_0: f32[7] in global)
      %alloc = alloc(%block) {name="parts__1"} : f32[32, 33] in shared
      %mul = mul(%block, 32:i64) : i64[]
      %loop_1 = loop(%alloc) {kind="warp"} : f32[32, 33] in shared \
{(%w__2 < 32, %m__3: f32[32, 33] in shared)
        %loop_3 = loop(%m__3) {kind="lane"} : f32[32, 33] in shared \
{(%l__4 < 32, %m__5: f32[32, 33] in shared)
          %add = add(%mul, %l__4) : i64[]
          %min = min(%add, 6:i64) : i64[]
          %rem = rem(%min, 7:i64) : i64[]
          %loop_5 = loop(%zero) {kind="serial"} : f32<1> {(%r__6 < 2, %acc__7: f32<1>)
            %mul_1 = mul(%r__6, 32:i64) : i64[]
            %add_2 = add(%mul_1, %w__2) : i64[]
            %v = load(%p0, %add_2, %rem) : f32<1>
            %add_3 = add(%acc__7, %v) : f32<1>
            return %add_3
          }
          %store = store(%m__5, %loop_5, %l__4, %w__2) : f32[32, 33] in shared
          return %store
        }
        return %loop_3
      }
      %loop_2 = loop(%o0_0) {kind="warp"} : f32[7] in global \
{(%w__8 < 1, %m__9: f32[7] in global)
        %loop_4 = loop(%m__9) {kind="lane"} : f32[7] in global \
{(%l__10 < 32, %m__11: f32[7] in global)
          %load = load(%loop_1, %l__10, 0:i64) : f32<32>
          %reduce = reduce(%load) {axes=[0], kind="sum"} : f32[]
          %broadcast = broadcast(%reduce) {axes=[]} : f32<1>
          %add_1 = add(%mul, %l__10) : i64[]
          %min_1 = min(%add_1, 6:i64) : i64[]
          %rem_1 = rem(%min_1, 7:i64) : i64[]
          %store_1 = store(%m__11, %broadcast, %rem_1) : f32[7] in global
          return %store_1
        }
        return %loop_4
      }
      return %loop_2
    }
    return %loop
"""


def lowered(body: str) -> Func:
    made = Pipeline([DistributeGpu()]).run(parse(HEAD.format(level="tile") + body + TAIL)).func
    verify(made)
    return made


def test_a_sum_is_shared() -> None:
    assert lowered(BEFORE) is parse(HEAD.format(level="loop") + EXPECTED + TAIL)


@pytest.mark.parametrize(
    "body",
    [
        BEFORE.replace("(%r < 64", "(%r < 7"),
        BEFORE.replace("broadcast(0.0:f32)", "broadcast(1.0:f32)"),
        BEFORE.replace("add(%acc, %v)", "sub(%acc, %v)"),
        BEFORE.replace("%add = add(%acc, %v)", "%u = mul(%acc, %v) : f32<7>\n%add = add(%acc, %u)"),
        BEFORE.replace("add(%acc, %v)", "add(%acc, %acc)"),
    ],
    ids=["short", "from one", "a difference", "a recurrence", "itself"],
)
def test_other_loops_belong_to_a_thread(body: str) -> None:
    assert "in shared" not in str(lowered(body))


def test_many_columns_keep_a_gpu_busy_alone() -> None:
    few, many = (str(gpu_func(group_of(column_sum, [("f32", 64, n)]))) for n in (1000, 1 << 17))
    assert "in shared" in few
    assert "in shared" not in many


def column_moments(b: Builder, x: Node) -> tuple[Node, ...]:
    """Two loops beside each other and one that follows them."""
    mean = b.div(b.reduce(x, kind="sum", axes=(0,)), float(x.shape[0]))  # pyright: ignore[reportArgumentType]
    most = b.reduce(x, kind="max", axes=(0,))
    apart = b.sub(x, b.broadcast(mean, axes=(1,), type=x.type))
    return mean, most, b.reduce(b.mul(apart, apart), kind="sum", axes=(0,))


def bits(b: Builder, x: Node) -> Node:
    return b.reduce(x, kind="and", axes=(0,))


# prime and even numbers of turns, one turn for each warp, elements that fill no warp
@pytest.mark.parametrize("size", [8, 31, 64, 97, 256])
@pytest.mark.parametrize("columns", [1, 31, 33])
def test_moments(size: int, columns: int, rng: np.random.Generator) -> None:
    spec: Spec = ("f32", size, columns)
    x = random_array(spec, rng)
    func = gpu_func(group_of(column_moments, [spec]))
    verify(func)
    wide = x.astype(np.float64)
    for got, want in zip(
        func.interpret(x), (wide.mean(0), wide.max(0), wide.var(0) * size), strict=True
    ):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def test_a_softmax_down_columns_shares_its_stores(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec: Spec = ("f32", 37, 40)
    x = random_array(spec, rng)
    text = str(gpu_func(group_of(column_softmax, [spec])))
    assert text.count('{kind="warp"}') == 3  # maximum, sum, and what is stored
    assert text.count('{kind="serial"}') == 3  # of two turns each
    backwards(monkeypatch)
    e = np.exp(x.astype(np.float64) - x.max(0))
    found = gpu_func(group_of(column_softmax, [spec])).interpret(x)
    np.testing.assert_allclose(found, e / e.sum(0), rtol=1e-5)


def test_integers_and_truth_values(rng: np.random.Generator) -> None:
    counts = rng.integers(-(2**60), 2**60, (50, 9))
    found = gpu_func(group_of(column_sum, [("i64", 50, 9)])).interpret(counts)
    np.testing.assert_array_equal(found, (counts * counts).sum(0))
    truth = rng.random((50, 9)) < 0.97
    found = gpu_func(group_of(bits, [("bool", 50, 9)])).interpret(truth)
    np.testing.assert_array_equal(found, truth.all(0))


def test_inf_and_nan_stay_in_their_columns(rng: np.random.Generator) -> None:
    x = random_array(("f32", 50, 9), rng)
    x[3, 1], x[49, 2], x[5, 3], x[6, 3] = np.nan, np.inf, np.inf, -np.inf
    with np.errstate(all="ignore"):
        want = [x.sum(0), x.max(0)]
        mean, most, _ = gpu_func(group_of(column_moments, [("f32", 50, 9)])).interpret(x)
    np.testing.assert_allclose(mean * 50, want[0], rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(most, want[1])
