"""distribute_gpu: the loop level of a GPU means what f64 says, in any order of its threads."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from gpu_cases import (
    TOLERANCE,
    TURNED,
    assert_near,
    backwards,
    gpu_func,
    gpu_kernel,
    several,
    turn,
)
from kernel_cases import CASES, Spec, group_of, layernorm, program, random_array, softmax

from stack.ir import Builder, Func, Node, TensorType, param, parse, tensor, verify
from stack.ir.data import round_bf16
from stack.passes.distribute_gpu import CannotDistribute, distribute_gpu_kernel
from stack.passes.tile import tile_group
from stack.rewrite.pipeline import Pipeline

Build = Callable[..., Node | tuple[Node, ...]]
COLLIDING = ("scatter_rows", "scatter_set")
ROWS = [c for c in CASES if c[0].__name__ not in COLLIDING]


def wide(group: Node) -> Func:
    """The group's program with f64 in the place of other floats."""
    text = str(program(group))
    for name in ("bf16", "f16", "f32"):
        text = text.replace(f"{name}[", "f64[").replace(f":{name}", ":f64")
    return parse(text)


def check(group: Node, arrays: list[np.ndarray], dtype: str, func: Func | None = None) -> Func:
    made = func if func is not None else gpu_func(group)
    verify(made)
    assert parse(str(made)) is made
    exact = [a.astype(np.float64) if a.dtype.kind == "f" else a for a in arrays]
    wants, found = several(wide(group).interpret(*exact)), several(made.interpret(*arrays))
    for got, want in zip(found, wants, strict=True):
        if want.dtype.kind == "f":
            assert_near(got, want, dtype if dtype in TOLERANCE else "f32")
        else:
            np.testing.assert_array_equal(got, want)
    return made


@pytest.mark.parametrize(("build", "specs"), ROWS, ids=lambda c: getattr(c, "__name__", None))
def test_levels_agree(build: Build, specs: list[Spec], rng: np.random.Generator) -> None:
    arrays = [random_array(s, rng) for s in specs]
    check(group_of(build, specs), arrays, str(specs[0][0]))


# one vector, a warp, a warp and one, several chunks of a warp, a block, with and without tails
@pytest.mark.parametrize("size", [1, 4, 31, 32, 33, 128, 129, 512, 516, 1028, 2052])
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_rows_of_every_length(size: int, dtype: str, rng: np.random.Generator) -> None:
    group = group_of(softmax, [(dtype, 1, 3, size), (dtype, 3, size)])
    arrays = [random_array(s, rng) for s in [(dtype, 1, 3, size), (dtype, 3, size)]]
    check(group, arrays, dtype)


def test_a_row_too_long_for_registers(rng: np.random.Generator) -> None:
    def total(b: Builder, x: Node) -> Node:
        return b.reduce(b.mul(x, x), kind="sum", axes=(1,))

    size = 40_000
    group = group_of(total, [("f32", 1, size)])
    text = str(check(group, [random_array(("f32", 1, size), rng)], "f32"))
    assert 'kind="serial"' in text
    assert "keep" not in text


@pytest.mark.parametrize("size", [70, 1100])
def test_inf_and_nan_stay_in_their_rows(size: int, rng: np.random.Generator) -> None:
    specs: list[Spec] = [("f32", 1, 4, size), ("f32", 4, size)]
    x, mask = (random_array(s, rng) for s in specs)
    x[0, 1, 3], x[0, 2, size - 1], mask[3, :5] = np.nan, np.inf, -np.inf
    with np.errstate(all="ignore"):
        check(group_of(softmax, specs), [x, mask], "f32")


@pytest.mark.parametrize(
    ("build", "specs"),
    [
        (softmax, [("f32", 1, 3, 70), ("f32", 3, 70)]),
        (softmax, [("f32", 1, 2, 1030), ("f32", 2, 1030)]),
        (layernorm, [("f32", 6, 100), ("f32", 100), ("f32", 100)]),
    ],
)
def test_threads_may_run_in_any_order(
    build: Build, specs: list[Spec], rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    backwards(monkeypatch)
    check(group_of(build, specs), [random_array(s, rng) for s in specs], "f32")


def test_softmax_of_short_rows_is_a_warp_and_of_long_ones_a_block() -> None:
    short = str(gpu_func(group_of(softmax, [("f32", 4, 8, 128), ("f32", 8, 128)])))
    assert short.count('kind="warp"') == 1
    assert "in shared" not in short
    assert short.count("= exp(") == 1  # kept in registers for the division
    long = str(gpu_func(group_of(softmax, [("f32", 4, 8, 4096), ("f32", 8, 4096)])))
    assert long.count('kind="warp"') == 3
    assert long.count('{name="sums') == 2  # the totals of warps, for each reduction
    assert long.count("= exp(") == 1


@pytest.mark.parametrize(("build", "specs"), TURNED, ids=lambda c: getattr(c, "__name__", None))
def test_what_is_read_across_is_turned_in_shared_memory(
    build: Build, specs: list[Spec], rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    arrays = [random_array(s, rng) for s in specs]
    text = str(check(group_of(build, specs), arrays, str(specs[0][0])))
    assert text.count('{name="square') == text.count("load(%p") - (build.__name__ == "turn_and_add")
    backwards(monkeypatch)
    check(group_of(build, specs), arrays, str(specs[0][0]))


def test_short_axes_are_not_turned_and_rows_need_not_be(rng: np.random.Generator) -> None:
    short = str(gpu_func(group_of(turn, [("f32", 2, 40, 7)])))
    assert "in shared" not in short
    heads = next(c for c in CASES if c[0].__name__ == "split_heads")
    assert "in shared" not in str(gpu_func(group_of(*heads)))


def test_before_and_expected() -> None:
    x = param("x", tensor("f32", 3, 8))
    b = Builder()
    inner = param("p0", x.tensor)
    body = b.block([inner], [b.mul(inner, 2.0)])
    group = Builder().fusion(x, kind="loop", name="twice", blocks=(body,))
    memory = "f32[3, 8] in global"
    before = f"""
func @main(%x: f32[3, 8]) -> (f32[3, 8]) at tensor {{
  %kernel = kernel(%x) {{level="tile", name="twice", ops=["mul"]}} : f32[3, 8]
  {{(%p0: {memory}, %o0: {memory})
    %loop = loop(%o0) {{kind="grid"}} : {memory} {{(%p_i1 < 3, %o0_0: {memory})
      %load = load(%p0, %p_i1, 0:i64) : f32<8>
      %mul = mul(%load, 2.0:f32) : f32<8>
      %store = store(%o0_0, %mul, %p_i1, 0:i64) : {memory}
      return %store
    }}
    return %loop
  }}
  return %kernel
}}
"""
    # 24 elements, one for each lane of one warp; lanes past the end repeat the last
    expected = f"""
func @main(%x: f32[3, 8]) -> (f32[3, 8]) at tensor {{
  %kernel = kernel(%x) {{level="loop", name="twice", ops=["mul"]}} : f32[3, 8]
  {{(%p0: {memory}, %o0: {memory})
    %loop = loop(%o0) {{kind="grid"}} : {memory} {{(%block < 1, %o0_0: {memory})
      %loop_1 = loop(%o0_0) {{kind="warp"}} : {memory} {{(%w__1 < 1, %m__2: {memory})
        %add = add(%block, %w__1) : i64[]
        %mul = mul(%add, 32:i64) : i64[]
        %loop_2 = loop(%m__2) {{kind="lane"}} : {memory} {{(%l__3 < 32, %m__4: {memory})
          %add_1 = add(%mul, %l__3) : i64[]
          %min = min(%add_1, 23:i64) : i64[]
          %div = div(%min, 8:i64) : i64[]
          %rem = rem(%min, 8:i64) : i64[]
          %load = load(%p0, %div, %rem) : f32<1>
          %mul_1 = mul(%load, 2.0:f32) : f32<1>
          %store = store(%m__4, %mul_1, %div, %rem) : {memory}
          return %store
        }}
        return %loop_2
      }}
      return %loop_1
    }}
    return %loop
  }}
  return %kernel
}}
"""
    assert program(tile_group(group)) is parse(before)
    assert Pipeline("distribute_gpu").run(parse(before)).func is parse(expected)


def test_vectors_of_sixteen_bytes_where_there_is_work_for_all() -> None:
    def twice(b: Builder, x: Node) -> Node:
        return b.mul(x, 2.0)

    large = str(gpu_func(group_of(twice, [("bf16", 1024, 1024)])))
    assert "bf16<8>" in large
    odd = str(gpu_func(group_of(twice, [("bf16", 1024, 1023)])))
    assert "bf16<8>" not in odd
    small = str(gpu_func(group_of(twice, [("bf16", 8, 1024)])))
    assert "bf16<8>" not in small


def test_what_has_no_schedule_says_why() -> None:
    build, specs = next(c for c in CASES if c[0].__name__ == "scatter_rows")
    kernel = tile_group(group_of(build, specs))
    with pytest.raises(CannotDistribute, match="twice to one memory"):
        distribute_gpu_kernel(kernel)
    with pytest.raises(Exception, match=r"no schedule 'fast'.*naive"):
        gpu_kernel(_small_product(), "fast")


@pytest.mark.parametrize(
    ("lines", "why"),
    [
        (
            """%a = load(%p0, %i, 0:i64) : f32<8>
            %half = load(%p0, %i, 4:i64) : f32<4>
            %total = reduce(%half) {axes=[0], kind="sum"} : f32[]
            %y = add(%a, %total) : f32<8>""",
            "several sizes",
        ),
        (
            """%a = load(%p0, %i, 0:i64) : f32<8>
            %e = exp(%a) : f32<8>
            %b = load(%p0, 0:i64, 0:i64) : f32<8x8>
            %y = dot(%e, %b) {rule="k, k n -> n"} : f32<8>""",
            "made by exp",
        ),
        (
            """%a = load(%p0, %i, 0:i64) : f32<8>
            %zero = sub(%a, %a) : f32<8>
            %y = loop(%zero) {kind="serial"} : f32<8> {(%r < 3, %acc: f32<8>)
              %part = load(%p0, %r, 0:i64) : f32<8>
              %b = load(%p0, 0:i64, 0:i64) : f32<8x8>
              %d = dot(%part, %b) {rule="k, k n -> n"} : f32<8>
              %more = add(%acc, %d) : f32<8>
              return %more
            }""",
            "part of a loop",
        ),
    ],
)
def test_tile_kernels_of_other_makes_are_refused(lines: str, why: str) -> None:
    memory = "f32[8, 8] in global"
    func = parse(f"""
func @main(%x: f32[8, 8]) -> (f32[8, 8]) at tensor {{
  %k = kernel(%x) {{level="tile", name="k"}} : f32[8, 8] {{(%p0: {memory}, %o0: {memory})
    %loop = loop(%o0) {{kind="grid"}} : {memory} {{(%i < 8, %o0_0: {memory})
      {lines}
      %st = store(%o0_0, %y, %i, 0:i64) : {memory}
      return %st
    }}
    return %loop
  }}
  return %k
}}
""")
    with pytest.raises(CannotDistribute, match=why):
        distribute_gpu_kernel(func.nodes[0])


def _small_product() -> Node:
    from gpu_cases import product_of

    return product_of("m k, k n -> m n", (16, 16), (16, 16), "bf16")


def test_the_pass_leaves_what_it_cannot_do_to_a_library_and_says_why() -> None:
    build, specs = next(c for c in CASES if c[0].__name__ == "scatter_rows")
    func = program(group_of(build, specs))
    result = Pipeline("tile_gpu,library,distribute_gpu").run(func)
    (node,) = (n for n in result.func.nodes if n.op == "fusion")
    assert node.attrs["kind"] == "library"
    notes = [note for record in result.records for note in record.notes]
    assert any("twice to one memory" in note for note in notes)


def test_registers_are_garbage_before_they_are_written(rng: np.random.Generator) -> None:
    """Memory of a block is new in every block: sums that nothing clears would show."""
    b = Builder()
    index = Node("var", (), {"name": "block", "extent": 2}, tensor("i64"))
    memory = TensorType(tensor("f32").dtype, (1, 32), "local")
    alloc = b.alloc(index, name="sums", type=memory)
    assert index in alloc.vars
    with pytest.raises(Exception, match="indices of the loops"):
        b.alloc(b.const(1), name="sums", type=memory)


def test_bf16_statistics_are_summed_in_f32(rng: np.random.Generator) -> None:
    specs: list[Spec] = [("bf16", 2, 512), ("bf16", 512), ("bf16", 512)]
    arrays = [random_array(s, rng) for s in specs]
    arrays[0] = round_bf16(arrays[0] + 100)
    text = str(check(group_of(layernorm, specs), arrays, "bf16"))
    assert "f32[1, 32] in local" in text or "f32[4, 32] in local" in text
