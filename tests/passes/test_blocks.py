"""Groups to kernels of blocks: run in the interpreter against double precision."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import numpy as np
import pytest
from gpu_cases import (
    EPILOGUES,
    PRODUCTS,
    TURNED,
    Build,
    Shape,
    assert_exact,
    assert_near,
    einsum,
    epilogue_of,
    floats,
    product_of,
    several,
)
from kernel_cases import CASES, Spec, group_of, in_blocks, pointwise, program, random_array, softmax

from stack.ir import Builder, Func, Node, param, parse, tensor, verify
from stack.ir.node import walk
from stack.passes.policies.lowerings import lowering_of
from stack.passes.tile import CannotTile
from stack.passes.tiling.single_ops import alone
from stack.rewrite import Pipeline
from stack.target import as_gpu

SCANS = [c for c in CASES if c[0].__name__.startswith(("running", "scatter"))]
ROWS = [c for c in CASES if c not in SCANS]


def lowered(group: Node, **blocks: int) -> Func:
    """The kernel of a group, verified and printed losslessly."""
    func = program(lowering_of(in_blocks(group, **blocks), as_gpu(None)).kernel())
    verify(func)
    assert parse(str(func)) is func
    return func


def compare(group: Node, arrays: list[np.ndarray], dtype: str, **tile: int) -> Func:
    func = lowered(group, **tile)
    with np.errstate(all="ignore"):
        found = func.interpret(*arrays)
    assert_exact(found, group, arrays, dtype)
    return func


# ---- loops and rows


@pytest.mark.parametrize(("build", "specs"), ROWS, ids=lambda c: getattr(c, "__name__", None))
def test_rows(build: Build, specs: list[Spec], rng: np.random.Generator) -> None:
    compare(group_of(build, specs), [random_array(s, rng) for s in specs], str(specs[0][0]))


@pytest.mark.parametrize(("build", "specs"), TURNED, ids=lambda c: getattr(c, "__name__", None))
def test_turned(build: Build, specs: list[Spec], rng: np.random.Generator) -> None:
    compare(group_of(build, specs), [random_array(s, rng) for s in specs], str(specs[0][0]))


@pytest.mark.parametrize("size", [1, 2, 31, 257, 1028, 4099])
@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16", "f64"])
def test_rows_of_every_length(size: int, dtype: str, rng: np.random.Generator) -> None:
    specs: list[Spec] = [(dtype, 2, 3, size), (dtype, 3, size)]
    compare(group_of(softmax, specs), [random_array(s, rng) for s in specs], dtype)


def test_a_row_longer_than_a_tile_is_walked(rng: np.random.Generator) -> None:
    specs: list[Spec] = [("f32", 1, 2, 33000), ("f32", 2, 33000)]
    func = compare(group_of(softmax, specs), [random_array(s, rng) for s in specs], "f32")
    assert str(func).count('kind="serial"') == 3


def test_inf_and_nan_stay_in_their_rows(rng: np.random.Generator) -> None:
    specs: list[Spec] = [("f32", 1, 4, 70), ("f32", 4, 70)]
    x, mask = (random_array(s, rng) for s in specs)
    x[0, 1, 3], x[0, 2, 69], mask[3, :5] = np.nan, np.inf, -np.inf
    compare(group_of(softmax, specs), [x, mask], "f32")


@pytest.mark.parametrize("fill", [-1e9, -1e30, -3.4028234663852886e38])
def test_a_row_of_one_huge_value_is_uniform(fill: float, rng: np.random.Generator) -> None:
    """A padded row whose elements are all the same large negative number."""
    x, mask = random_array(("f32", 1, 2, 70), rng), np.zeros((2, 70), np.float32)
    x[0, 0] = 0
    mask[0], mask[1, :20] = fill, fill
    compare(group_of(softmax, [("f32", 1, 2, 70), ("f32", 2, 70)]), [x, mask], "f32")


@pytest.mark.parametrize("kind", ["sum", "prod", "max", "min"])
@pytest.mark.parametrize("dtype", ["f32", "i32", "i64", "bf16"])
@pytest.mark.parametrize("shape", [(7, 33), (1, 5), (333, 3)])
def test_reductions(kind: str, dtype: str, shape: Shape, rng: np.random.Generator) -> None:
    values = random_array((dtype, *shape), rng)
    values = (values / np.abs(values).max() + 1).astype(values.dtype) if dtype == "f32" else values
    if kind == "prod":
        values = np.clip(values, -1, 1)
    for axes in ((0,), (1,), (0, 1)):
        x = param("x", tensor(dtype, *shape))
        compare(alone(Builder().reduce(x, kind=kind, axes=axes)), [values], dtype)


@pytest.mark.parametrize("kind", ["and", "or", "max"])
def test_reductions_of_bool(kind: str, rng: np.random.Generator) -> None:
    values = rng.integers(0, 2, (7, 33)) == 1
    values[2], values[3] = True, False
    node = Builder().reduce(param("x", tensor("bool", 7, 33)), kind=kind, axes=(1,))
    compare(alone(node), [values], "bool")


def test_a_reduction_along_a_broadcast_counts_its_size(rng: np.random.Generator) -> None:
    def repeated(b: Builder, x: Node) -> Node:
        return b.reduce(b.broadcast(x, axes=(0,), type=tensor("f32", 5, 7)), kind="sum", axes=(1,))

    compare(group_of(repeated, [("f32", 5)]), [random_array(("f32", 5), rng)], "f32")


def test_a_reduction_that_is_read_along_its_own_axis(rng: np.random.Generator) -> None:
    """Sums of columns, read by column and by row."""

    def both(b: Builder, x: Node) -> tuple[Node, Node]:
        total = b.reduce(x, kind="sum", axes=(0,))
        by_row = b.broadcast(total, axes=(0,), type=x.type)
        return total, b.add(x, by_row)

    compare(group_of(both, [("f32", 8, 8)]), [random_array(("f32", 8, 8), rng)], "f32")


def test_rows_that_are_spread_over_another_axis(rng: np.random.Generator) -> None:
    """The second result has none of the elements that are reduced."""

    def spread(b: Builder, x: Node, y: Node) -> tuple[Node, Node]:
        most = b.reduce(x, kind="max", axes=(2,))
        rows = b.broadcast(most, axes=(0, 1), type=x.type)
        return most, b.sub(rows, b.broadcast(y, axes=(0, 2), type=x.type))

    specs = [("f32", 3, 24, 24), ("f32", 3, 24)]
    compare(group_of(spread, specs), [random_array(s, rng) for s in specs], "f32")


def test_an_index_of_data_and_position(rng: np.random.Generator) -> None:
    """Elements at 8 * rows[i] + i: no block of the memory."""

    def picked(b: Builder, x: Node, rows: Node) -> Node:
        square = b.reshape(x, type=tensor("f32", 4, 8))
        return b.neg(b.gather(square, rows, rule="v! d, d -> d"))

    arrays = [random_array(("f32", 32), rng), rng.integers(0, 4, 8).astype(np.int32)]
    compare(group_of(picked, [("f32", 32), ("i32", 8)]), arrays, "f32")


def test_division_by_a_number_too_small_to_invert() -> None:
    def divided(b: Builder, x: Node) -> Node:
        return b.div(x, 1e-40)

    values = np.array([0, 1e-40, -2e-40], np.float32)
    (got,) = several(lowered(group_of(divided, [("f32", 3)])).interpret(values))
    assert np.isfinite(got).all()


def test_a_bitcast_keeps_the_bits(rng: np.random.Generator) -> None:
    def bits(b: Builder, x: Node) -> Node:
        return b.bitcast(x, type=tensor("i32", 5, 7))

    values = random_array(("f32", 5, 7), rng)
    func = lowered(group_of(bits, [("f32", 5, 7)]))
    np.testing.assert_array_equal(func.interpret(values), values.view(np.int32))


# ---- products


@pytest.mark.parametrize(("rule", "first", "second"), PRODUCTS)
@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32"])
def test_products(
    rule: str, first: Shape, second: Shape, dtype: str, rng: np.random.Generator
) -> None:
    arrays = [floats(s, dtype, rng) for s in (first, second)]
    group = product_of(rule, first, second, dtype)
    assert_near(several(lowered(group).interpret(*arrays))[0], einsum(rule, *arrays), dtype)


@pytest.mark.parametrize("rule", ["m k, k n -> m n", "m k, n k -> m n", "k m, n k -> m n"])
@pytest.mark.parametrize("shape", [(70, 33, 521), (128, 64, 512)])
def test_a_long_contracted_axis_is_walked(
    rule: str, shape: tuple[int, int, int], rng: np.random.Generator
) -> None:
    sizes = dict(zip("mnk", shape, strict=True))
    parts = rule.split(" -> ")[0].split(",")
    first, second = (tuple(sizes[n] for n in part.split()) for part in parts)
    arrays = [floats(s, "bf16", rng) for s in (first, second)]
    func = lowered(product_of(rule, first, second, "bf16"), m=64, n=32, k=32)
    assert str(func).count('kind="serial"') == 1
    assert_near(several(func.interpret(*arrays))[0], einsum(rule, *arrays), "bf16")


@pytest.mark.parametrize(("build", "shapes"), EPILOGUES, ids=lambda c: getattr(c, "__name__", None))
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_epilogues(build: Build, shapes: list[Shape], dtype: str, rng: np.random.Generator) -> None:
    compare(epilogue_of(build, shapes, dtype), [floats(s, dtype, rng) for s in shapes], dtype)


def test_inf_and_nan_of_products(rng: np.random.Generator) -> None:
    x, w = floats((9, 20), "f32", rng), floats((70, 20), "f32", rng)
    x[3, 5], x[8, 19], w[69, 2] = np.inf, np.nan, -np.inf
    compare(product_of("m k, n k -> m n", x.shape, w.shape, "f32"), [x, w], "f32")


# ---- what stays as it is


def test_empty_arrays_are_refused_by_name() -> None:
    with pytest.raises(CannotTile, match="empty"):
        lowered(group_of(pointwise, [("f32", 0, 3)]))


@pytest.mark.parametrize("dtype", ["i32", "f64"])
def test_products_that_a_backend_has_no_code_for_are_left(dtype: str) -> None:
    func = program(product_of("m k, k n -> m n", (20, 20), (20, 20), dtype))
    result = Pipeline("blocks{dots=[f32]}").run(func)
    assert all(n.op != "kernel" for n in result.func.nodes)
    assert any(f"no tile product of {dtype}" in n for r in result.records for n in r.notes)
    (kernel,) = Pipeline("blocks").run(func).func.nodes
    assert kernel.op == "kernel"


@pytest.mark.parametrize(("build", "specs"), SCANS, ids=lambda c: getattr(c, "__name__", None))
def test_scatters_and_running_maxima_are_left(build: Build, specs: list[Spec]) -> None:
    b = Builder()
    params = [param(f"x{i}", tensor(*s)) for i, s in enumerate(specs)]
    func = b.func("main", params, [build(b, *params)])
    if build.__name__ == "running_sum":
        assert Pipeline("blocks").run(func).func.body.results[0].op == "kernel"
        return
    assert func.body.results[0].op in ("scatter", "scan")
    assert Pipeline("blocks").run(func).func is func


def test_a_refused_op_is_named() -> None:
    b = Builder()
    x = param("x", tensor("f32", 5))
    func = b.func("main", [x], [b.exp(x)])
    result = Pipeline("blocks{refuse=[exp]}").run(func)
    assert result.func is func
    assert any("no code for exp" in note for r in result.records for note in r.notes)


def test_warps_and_stages_that_are_asked_for() -> None:
    b = Builder()
    x, w = (param(n, tensor("bf16", 128, 128)) for n in "xw")
    func = b.func("main", [x, w], [b.dot(x, w, rule="m k, k n -> m n")])
    given = {"*": "warps=2 stages=5"}
    (kernel,) = Pipeline("schedule,blocks").run(func, schedules=given).func.nodes
    assert (kernel.attrs["warps"], kernel.attrs["stages"]) == (2, 5)


def test_kernels_are_passed_on_as_they_are_made() -> None:
    made: list[Node] = []
    func = Pipeline("fuse,blocks").run(parse(BEFORE), on_kernel=made.append).func
    assert made == [n for n in func.nodes if n.op == "kernel"]


def test_no_pass_knows_a_pattern_by_name() -> None:
    """Docstrings may name an example; code and strings of the code may not."""
    words = re.compile("attention|softmax|flash|query", re.IGNORECASE)
    files = list((Path(__file__).parents[2] / "passes").rglob("*.py"))
    assert len(files) > 80
    for file in files:
        tree = ast.parse(file.read_text())
        told = {n.value for n in ast.walk(tree) if isinstance(n, ast.Expr)}
        for node in ast.walk(tree):
            names = [str(v) for v in vars(node).values() if isinstance(v, str)]
            assert node in told or not any(map(words.search, names)), f"{file.name}: {names}"


# ---- text

BEFORE = """
func @main(%x: f32[64, 48]) -> (f32[48, 64]) at tensor {
  %y = transpose(%x) {perm=[1, 0]} : f32[48, 64]
  %z = exp(%y) : f32[48, 64]
  return %z
}
"""
EXPECTED = """
func @main(%x: f32[64, 48]) -> (f32[48, 64]) at tensor {
  %z = kernel(%x) {level="tile", name="exp", ops=["transpose", "exp"], stages=2, warps=2}
    : f32[48, 64] {(%p0: f32[64, 48] in global, %o0: f32[48, 64] in global)
    %loop = loop(%o0) {kind="grid"} : f32[48, 64] in global {(%i.0 < 3: i32,
      %o0_3: f32[48, 64] in global)
      %mul = mul(%i.0, 16:i32) : i32[]
      %load = load(%p0, 0:i32, %mul) : f32<64x16>
      %y = transpose(%load) {perm=[1, 0]} : f32<16x64>
      %z = exp(%y) : f32<16x64>
      %store = store(%o0_3, %z, %mul, 0:i32) : f32[48, 64] in global
      return %store
    }
    return %loop
  }
  return %z
}
"""


def test_before_and_expected() -> None:
    """A transposed copy is read and written in blocks, 16 columns to a program."""
    after = Pipeline("fuse,blocks").run(parse(BEFORE)).func
    assert str(after) == str(parse(EXPECTED))
    assert str(Pipeline("blocks").run(after).func) == str(after)


def tiles_read(text: str) -> set[tuple[int, ...]]:
    """Shapes of what the kernels of a function read, axes of one element left out."""
    func = Pipeline("fuse,blocks").run(parse(text)).func
    loads = [n for _, n in walk(func.body) if n.op == "load"]
    return {tuple(int(s) for s in n.shape if s != 1) for n in loads}


def test_a_large_turned_copy_goes_by_squares() -> None:
    text = BEFORE.replace("64", "1024").replace("48", "2096")
    assert tiles_read(text) == {(64, 64)}


def test_a_row_that_lies_across_lines_is_read_once_for_several() -> None:
    """%d[h, i, j] = a[i, h] - a[j, h]: a tile has some of all three."""
    text = """func @main(%a: f32[512, 8]) -> (f32[8, 512, 512]) at tensor {
  %t = transpose(%a) {perm=[1, 0]} : f32[8, 512]
  %l = broadcast(%t) {axes=[0, 1]} : f32[8, 512, 512]
  %r = broadcast(%t) {axes=[0, 2]} : f32[8, 512, 512]
  %d = sub(%l, %r) : f32[8, 512, 512]
  return %d
}
"""
    assert tiles_read(text) == {(8, 8), (64, 8)}


def test_a_row_that_lies_along_a_line_takes_whole_lines() -> None:
    text = """func @main(%a: f32[8, 512]) -> (f32[8, 512, 512]) at tensor {
  %l = broadcast(%a) {axes=[0, 1]} : f32[8, 512, 512]
  %r = broadcast(%a) {axes=[0, 2]} : f32[8, 512, 512]
  %d = sub(%l, %r) : f32[8, 512, 512]
  return %d
}
"""
    assert tiles_read(text) == {(2,), (512,)}


@pytest.mark.parametrize("dtype", ["bf16", "f32"])
def test_a_difference_is_taken_before_it_is_scaled_for_exp2(dtype: str) -> None:
    """x * log2(e) is rounded relative to x: it would show where x is large."""

    def shifted(b: Builder, x: Node) -> Node:
        wide = b.cast(x, type=tensor("f32", 3, 40)) if dtype == "bf16" else x
        top = b.reduce(wide, kind="max", axes=(1,))
        return b.exp(b.sub(wide, b.broadcast(top, axes=(0,), type=wide.type)))

    text = str(lowered(group_of(shifted, [(dtype, 3, 40)])))
    assert "= exp(" in text and "exp2(" not in text


def test_a_row_of_one_part_has_a_mask_in_each_lane(rng: np.random.Generator) -> None:
    """A block that is read in some programs only is masked, not clipped at its end."""

    def both(b: Builder, x: Node, y: Node) -> Node:
        return b.exp(b.concat(x, y, axis=0))

    specs: list[Spec] = [("f32", 3, 3000), ("f32", 5, 3000)]
    func = compare(group_of(both, specs), [random_array(s, rng) for s in specs], "f32")
    loads = [n for _, n in walk(func.body) if n.op == "load"]
    assert loads and all(("clip" in n.attrs) != (len(n.args) == 5) for n in loads)


def test_a_slice_that_starts_between_blocks_is_masked(rng: np.random.Generator) -> None:
    """The last block of the last slice would end past the memory, which blocks divide."""

    def part(b: Builder, x: Node) -> Node:
        return b.exp(b.slice(x, start=(0, 10752), limit=(64, 12288), step=(1, 1)))

    spec: Spec = ("f32", 64, 12288)
    func = compare(group_of(part, [spec]), [random_array(spec, rng)], "f32")
    (load,) = (n for _, n in walk(func.body) if n.op == "load")
    assert "clip" not in load.attrs and len(load.args) == 5
