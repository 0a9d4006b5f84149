"""gpu_layout: kernels of blocks on the threads of a GPU mean what f64 says."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from gpu_cases import (
    TURNED,
    assert_exact,
    block_kernel,
    gpu_func,
    turn,
)
from kernel_cases import CASES, Spec, group_of, layernorm, program, random_array, softmax

from stack.ir import Builder, Func, Node, TensorType, make, param, parse, tensor, verify
from stack.ir.data import round_bf16
from stack.ir.node import Block, walk
from stack.ir.refusal import KernelRefused
from stack.passes.gpu_layout.builder import ThreadBuilder
from stack.passes.gpu_layout.classes import DimClasses
from stack.passes.gpu_layout.contiguity import Contiguity
from stack.passes.gpu_layout.instruction_layouts import depth_share, mma_layout, right_share
from stack.passes.gpu_layout.layouts import Layouts
from stack.passes.gpu_layout.share import Share, bits_of, share_of
from stack.rewrite.pipeline import Pipeline

Build = Callable[..., Node | tuple[Node, ...]]
COLLIDING = ("scatter_rows", "scatter_set")
NO_BLOCKS = (*COLLIDING, "running_max_back")
ROWS = [c for c in CASES if c[0].__name__ not in NO_BLOCKS]


def check(group: Node, arrays: list[np.ndarray], dtype: str, func: Func | None = None) -> Func:
    made = func if func is not None else gpu_func(group)
    verify(made)
    assert parse(str(made)) is made
    assert_exact(made.interpret(*arrays), group, arrays, dtype)
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


def count(func: Func, op: str, **attrs: object) -> int:
    """The number of nodes of an op in a function, with these attributes."""
    nodes = (n for _, n in walk(func.body) if n.op == op)
    return sum(all(n.attrs.get(k) == v for k, v in attrs.items()) for n in nodes)


@pytest.mark.parametrize("size", [70, 1100])
def test_inf_and_nan_stay_in_their_rows(size: int, rng: np.random.Generator) -> None:
    specs: list[Spec] = [("f32", 1, 4, size), ("f32", 4, size)]
    x, mask = (random_array(s, rng) for s in specs)
    x[0, 1, 3], x[0, 2, size - 1], mask[3, :5] = np.nan, np.inf, -np.inf
    with np.errstate(all="ignore"):
        check(group_of(softmax, specs), [x, mask], "f32")


def test_a_short_row_is_reduced_by_shuffles_and_a_long_one_in_shared_memory() -> None:
    short = gpu_func(group_of(softmax, [("f32", 4, 8, 128), ("f32", 8, 128)]))
    assert count(short, "shuffle", kind="xor") == 2 * 5
    assert count(short, "alloc") == 0
    assert count(short, "exp") == 1  # kept in registers for the division
    long = gpu_func(group_of(softmax, [("f32", 4, 8, 8192), ("f32", 8, 8192)]))
    assert count(long, "alloc") == 2  # what warps found, for each reduction


@pytest.mark.parametrize(("build", "specs"), TURNED, ids=lambda c: getattr(c, "__name__", None))
def test_what_is_read_across_goes_through_shared_memory(
    build: Build, specs: list[Spec], rng: np.random.Generator
) -> None:
    arrays = [random_array(s, rng) for s in specs]
    made = check(group_of(build, specs), arrays, str(specs[0][0]))
    assert count(made, "alloc") >= 1


def test_short_axes_are_read_as_they_lie() -> None:
    assert count(gpu_func(group_of(turn, [("f32", 2, 40, 7)])), "alloc") == 0


def twice(b: Builder, x: Node) -> Node:
    return b.mul(x, 2.0)


def test_vectors_of_sixteen_bytes_where_memory_allows() -> None:
    def vectors(dtype: str, *shape: int) -> set[object]:
        made = gpu_func(group_of(twice, [(dtype, *shape)]))
        return {n.attrs.get("vector") for _, n in walk(made.body) if n.op in ("load", "store")}

    assert vectors("bf16", 1024, 1024) == {8}
    assert vectors("f32", 1024, 1024) == {4}
    assert vectors("bf16", 1024, 1030) == {2}
    assert vectors("bf16", 1024, 1023) == {None}


def test_a_vector_that_does_not_lie_together_is_an_error() -> None:
    text = """
func @main(%x: f32[4, 64]) -> (f32[4, 64]) at tensor {
  %k = kernel(%x) {level="loop", name="k", warps=1} : f32[4, 64]
  {(%p0: f32[4, 64] in global, %o0: f32[4, 64] in global)
    %lane = iota() {axis=1} : i32<1x32>
    %wide = broadcast(%lane) {axes=[0, 1]} : i32<1x32x2>
    %i = iota() {axis=2} : i32<1x32x2>
    %at = add(%wide, %i) : i32<1x32x2>
    %loop = loop(%o0) {kind="grid"} : f32[4, 64] in global {(%r < 4, %o: f32[4, 64] in global)
      %row = broadcast(%r) {axes=[]} : i64<1x32x2>
      %v = load(%p0, %row, %at) {vector=2} : f32<1x32x2>
      %s = store(%o, %v, %row, %at) : f32[4, 64] in global
      return %s
    }
    return %loop
  }
  return %k
}
"""
    x = np.zeros((4, 64), np.float32)
    with pytest.raises(IndexError, match="load of 2 elements that are not contiguous"):
        parse(text).interpret(x)
    even = text.replace(
        "%wide = broadcast(%lane)",
        "%two = mul(%lane, 2:i32) : i32<1x32>\n    %wide = broadcast(%two)",
    )
    np.testing.assert_array_equal(parse(even).interpret(x), x)


def test_before_and_expected() -> None:
    before = """
func @main(%x: f32[3, 64]) -> (f32[3]) at tensor {
  %k = kernel(%x) {level="tile", name="total", warps=1} : f32[3]
  {(%p0: f32[3, 64] in global, %o0: f32[3] in global)
    %loop = loop(%o0) {kind="grid"} : f32[3] in global {(%i < 3: i32, %o: f32[3] in global)
      %row = load(%p0, %i, 0:i32) : f32<64>
      %total = reduce(%row) {axes=[0], kind="sum"} : f32[]
      %s = store(%o, %total, %i) : f32[3] in global
      return %s
    }
    return %loop
  }
  return %k
}
"""
    # two elements for each lane, of which the first stores the sum of all
    expected = """
func @main(%x: f32[3, 64]) -> (f32[3]) at tensor {
  %k = kernel(%x) {level="loop", name="total", warps=1} : f32[3]
  {(%p0: f32[3, 64] in global, %o0: f32[3] in global)
    %lane = iota() {axis=1} : i32<1x32>
    %first = eq(%lane, 0:i32) : bool<1x32>
    %i2 = iota() {axis=2} : i32<1x32x2>
    %two = mul(%lane, 2:i32) : i32<1x32>
    %wide = broadcast(%two) {axes=[0, 1]} : i32<1x32x2>
    %at = add(%i2, %wide) : i32<1x32x2>
    %loop = loop(%o0) {kind="grid"} : f32[3] in global {(%i < 3: i32, %o: f32[3] in global)
      %one = broadcast(%i) {axes=[]} : i32<1x32>
      %all = broadcast(%i) {axes=[]} : i32<1x32x2>
      %row = load(%p0, %all, %at) {vector=2} : f32<1x32x2>
      %sum = reduce(%row) {axes=[2], kind="sum"} : f32<1x32>
      %b16 = shuffle(%sum) {by=16, kind="xor"} : f32<1x32>
      %s16 = add(%sum, %b16) : f32<1x32>
      %b8 = shuffle(%s16) {by=8, kind="xor"} : f32<1x32>
      %s8 = add(%s16, %b8) : f32<1x32>
      %b4 = shuffle(%s8) {by=4, kind="xor"} : f32<1x32>
      %s4 = add(%s8, %b4) : f32<1x32>
      %b2 = shuffle(%s4) {by=2, kind="xor"} : f32<1x32>
      %s2 = add(%s4, %b2) : f32<1x32>
      %b1 = shuffle(%s2) {by=1, kind="xor"} : f32<1x32>
      %total = add(%s2, %b1) : f32<1x32>
      %s = store(%o, %total, %one, %first) : f32[3] in global
      return %s
    }
    return %loop
  }
  return %k
}
"""
    made, want = Pipeline("distribute_gpu").run(parse(before)).func, parse(expected)
    kernels = [f.results[0].blocks[0] for f in (made, want)]
    assert kernels[0].results == kernels[1].results


@pytest.mark.every(3)
@pytest.mark.parametrize("kind", ["sum", "prod"])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("shape", [(3, 5), (2, 64), (3, 300), (1, 9000), (70, 33)])
@pytest.mark.parametrize("axis", [0, 1])
def test_scans(
    kind: str, reverse: bool, shape: tuple[int, int], axis: int, rng: np.random.Generator
) -> None:
    def running(b: Builder, x: Node) -> Node:
        return b.scan(x, kind=kind, axis=axis, reverse=reverse)

    x = rng.uniform(0.9, 1.1, shape).astype(np.float32)
    made = gpu_func(group_of(running, [("f32", *shape)]))
    verify(made)
    turned = np.flip(x.astype(np.float64), axis) if reverse else x.astype(np.float64)
    want = {"sum": np.cumsum, "prod": np.cumprod}[kind](turned, axis=axis)
    want = np.flip(want, axis) if reverse else want
    np.testing.assert_allclose(made.interpret(x), want, rtol=2e-5)


def index_maps_of(share: Share) -> np.ndarray:
    """Thread by thread, the indices along an axis with a share."""
    tiles = ThreadBuilder(program(make("iota", [], {"axis": 0}, hint=tensor("i64", 4))).body, 4)
    node = tiles.along(share).node
    func = Builder().func("main", [], [node], "loop")
    return func.interpret().reshape(128, -1)


@pytest.mark.parametrize(
    ("sizes", "vectors"),
    [((64,), (4,)), ((8, 256), (1, 8)), ((512, 2), (1, 1)), ((4, 16, 2), (1,) * 3)],
)
def test_every_place_has_a_thread(sizes: tuple[int, ...], vectors: tuple[int, ...]) -> None:
    layouts = Layouts(DimClasses(Block((), ())), Contiguity(), 4, {})
    layout = layouts.blocked(sizes, vectors)
    assert [s.size for s in layout] == list(sizes)
    axes = [index_maps_of(s) for s in layout]
    held = set()
    for thread in range(128):
        grid = np.meshgrid(*(a[thread] for a in axes))
        held |= set(zip(*(g.ravel().tolist() for g in grid), strict=True))
    assert len(held) == np.prod(sizes)
    used = [bits_of([s]) for s in layout]
    assert sum(used) == bits_of(layout)  # no bit of the thread's number belongs to two axes


def test_digits_of_a_place() -> None:
    share = share_of((4, 0), (8, 1), (2, 0))
    assert (share.size, share.registers, share.vector) == (64, 8, 4)
    np.testing.assert_array_equal(index_maps_of(share)[9], [4, 5, 6, 7, 36, 37, 38, 39])


@pytest.mark.parametrize(("rows", "columns"), [(64, 64), (16, 128), (32, 16)])
def test_sums_lie_as_the_instruction_has_them(rows: int, columns: int) -> None:
    down, across = (index_maps_of(s) for s in mma_layout(rows, columns, 4))
    lane = np.arange(32)
    np.testing.assert_array_equal(down[:32, 0], lane // 4)
    np.testing.assert_array_equal(across[:32, :2], lane[:, None] % 4 * 2 + [0, 1])
    assert len({(r, c) for t in range(128) for r in down[t] for c in across[t]}) == rows * columns


def test_a_matrix_instruction_of_every_warp(rng: np.random.Generator) -> None:
    """Operands are spread by the layouts, the sums gathered by theirs."""
    m, n, k = 64, 16, 32
    a, b = rng.normal(size=(m, k)), rng.normal(size=(k, n))
    rows, columns = mma_layout(m, n, 4)
    left = a[index_maps_of(rows)[:, :, None], index_maps_of(depth_share(k))[:, None]]
    right = b[
        index_maps_of(depth_share(k))[:, :, None], index_maps_of(right_share(columns))[:, None]
    ]
    args = [param(f"p{i}", tensor("f64", 4, 32, *v.shape[1:])) for i, v in enumerate((left, right))]
    zero = param("c", tensor("f64", 4, 32, 2, columns.registers))
    func = Builder().func("main", [*args, zero], [make("mma_sync", [*args, zero])], "loop")
    found = func.interpret(
        left.reshape(args[0].shape), right.reshape(args[1].shape), np.zeros(zero.shape)
    ).reshape(128, 2, -1)
    want = (a @ b)[index_maps_of(rows)[:, :, None], index_maps_of(columns)[:, None]]
    np.testing.assert_allclose(found, want)


def test_what_has_no_layout_is_refused_by_kernel() -> None:
    text = """
func @main(%x: f32[8]) -> (f32[8]) at tensor {
  %k = kernel(%x) {level="tile", name="k", warps=4} : f32[8]
  {(%p0: f32[8] in global, %o0: f32[8] in global)
    %loop = loop(%o0) {kind="parallel"} : f32[8] in global {(%i < 1, %o: f32[8] in global)
      %v = load(%p0, %i) : f32<8>
      %s = store(%o, %v, %i) : f32[8] in global
      return %s
    }
    return %loop
  }
  return %k
}
"""
    with pytest.raises(KernelRefused, match="kernel k: a parallel loop"):
        Pipeline("distribute_gpu").run(parse(text))


def test_what_is_no_kernel_of_blocks_goes_to_a_library_and_says_why() -> None:
    build, specs = next(c for c in CASES if c[0].__name__ == "scatter_rows")
    result = Pipeline("blocks,library,distribute_gpu").run(program(group_of(build, specs)))
    (node,) = (n for n in result.func.nodes if n.op == "fusion")
    assert node.attrs["kind"] == "library"


def test_registers_are_garbage_before_they_are_written() -> None:
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
    made = check(group_of(layernorm, specs), arrays, "bf16")
    assert {n.dtype.name for _, n in walk(made.body) if n.op == "shuffle"} == {"f32"}


def test_equal_kernels_of_blocks_are_one_kernel() -> None:
    group = group_of(twice, [("f32", 64, 64)])
    assert block_kernel(group) is block_kernel(group)
    assert gpu_func(group) is gpu_func(group)
