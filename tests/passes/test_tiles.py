"""Tiles of products: the model's order, the text on a group, and the kernel of `blocks`."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from stack.ir import Builder, Func, param, parse, tensor, verify
from stack.ir.data import round_bf16
from stack.ir.node import walk
from stack.ir.types import BF16, F32
from stack.passes.gpu_products.tile_choice import (
    LIBRARY,
    Product,
    Tile,
    best_seconds,
    library_seconds,
    measured_tiles,
    predicted,
    ranked,
)
from stack.rewrite import Pipeline
from stack.schedule import Schedule, schedules_of
from stack.target import Gpu, as_gpu
from stack.target.record import PRODUCTS

GPU = as_gpu(None)


def product(m: int, n: int, k: int, dtype: str = "bf16") -> Func:
    x, w = param("x", tensor(dtype, m, k)), param("w", tensor(dtype, n, k))
    b = Builder()
    return b.func("main", [x, w], [b.dot(x, w, rule="m k, n k -> m n")])


@pytest.mark.parametrize(
    "tile", [*measured_tiles(GPU, "half"), Tile(128, 256, 64, 8, 3, last=(64, 128))]
)
def test_a_tile_is_a_schedule(tile: Tile) -> None:
    assert Tile.of(Schedule.parse(str(tile.schedule))) == tile


WHICH = {
    "half": (Product(4096, 4096, 4096), BF16),
    "single": (Product(4096, 4096, 4096), F32),
    "fma": (Product(4096, 4096, 4096, by_threads=True), F32),
    "tf32": (Product(4096, 4096, 4096, rounds=True, rounded=True), F32),
    "rounding": (Product(4096, 4096, 4096, rounds=True), F32),
    "reading": (Product(4096, 4096, 4096, reads=True, work=20), BF16),
    "tail": (Product(4096, 9216, 4096), BF16),
    "library": (Product(1408, 2304, 4096), BF16),
}


@pytest.mark.parametrize("kind", PRODUCTS)
def test_what_tiles_reach_is_what_choices_go_by(kind: str) -> None:
    """For each kind of product, slower tiles in the target change the times of the model."""
    product, dtype = WHICH[kind]

    def told(gpu: Gpu) -> tuple[list[float], float]:
        times = [predicted(t, product, dtype, gpu).seconds for t in ranked(product, dtype, gpu)]
        return times, library_seconds(product, dtype, gpu)

    slower = tuple(replace(t, rate=t.rate / 2) if t.product == kind else t for t in GPU.tiles)
    assert told(GPU) != told(replace(GPU, tiles=slower))


def test_few_rows_take_a_flat_tile_and_many_a_large_one() -> None:
    assert ranked(Product(16, 4096, 4096), BF16, GPU)[0].rows == 16
    large = ranked(Product(8192, 8192, 8192), BF16, GPU)[0]
    assert (large.rows, large.lanes, large.persistent) == (128, 256, True)
    assert ranked(Product(8192, 8192, 8192), F32, GPU)[0].step == 32


def test_time_grows_with_turns_of_the_processors() -> None:
    tile = Tile(128, 128, 64, 4, 6)
    full = Product(128 * 11, 128 * GPU.processors // 11, 4096)
    more = Product(128 * 11, 128 * GPU.processors // 11 + 1, 4096)
    assert predicted(tile, more, BF16, GPU).seconds > 1.8 * predicted(tile, full, BF16, GPU).seconds


def test_a_group_names_its_tiles_and_blocks_takes_the_first() -> None:
    func = Pipeline("schedule{most=3}").run(product(2048, 4096, 4096)).func
    verify(func)
    assert parse(str(func)) is func
    (group,) = func.nodes
    tiles = schedules_of(group)
    assert len(tiles) == len(set(tiles)) == 3
    (kernel,) = Pipeline("blocks").run(func).func.nodes
    first = Schedule.parse(tiles[0])
    assert (kernel.attrs["warps"], kernel.attrs["stages"]) == (first.warps, first.stages)
    assert kernel.attrs.get("programs") == (GPU.processors if first.persistent else None)


def test_much_work_leaves_registers_to_it() -> None:
    products = (Product(8192, 3072, 768, reads=True, work=w) for w in (2.0, 30.0))
    plain, busy = (ranked(p, BF16, GPU)[0] for p in products)
    assert busy.rows * busy.lanes // busy.warps < plain.rows * plain.lanes // plain.warps


def test_what_the_tiles_say_is_done() -> None:
    text = str(Pipeline("schedule").run(product(256, 512, 64)).func)
    start = text.index("schedule=") + len("schedule=")
    own = text[start : text.index("}", start)]
    func = parse(text.replace(own, '"m=64@grid n=32@grid k=16@serial warps=2 stages=5"'))
    tiled = Pipeline("blocks").run(func).func
    (kernel,) = tiled.nodes
    assert (kernel.attrs["warps"], kernel.attrs["stages"]) == (2, 5)
    assert "f32<64x32>" in str(tiled)


def test_no_product_no_tiles() -> None:
    x = param("x", tensor("f32", 64, 128))
    b = Builder()
    func = b.func("main", [x], [b.reduce(b.exp(x), axes=(1,), kind="sum")])
    assert Pipeline("schedule").run(func).func is func


def test_note_says_what_the_model_expects() -> None:
    (record,) = Pipeline("schedule").run(product(512, 4096, 4096)).records
    (note,) = record.notes
    assert note.count(" us") == 2 and "m k, n k -> m n" in note


def test_persistent_programs_compute_the_same(rng: np.random.Generator) -> None:
    func = Pipeline("schedule").run(product(200, 2100, 32)).func
    text = str(func)
    start = text.index("schedule=") + len("schedule=")
    own = text[start : text.index("}", start)]
    shared = parse(
        text.replace(own, '"m=32@grid n=64@grid k=32@serial warps=4 stages=2 persistent"')
    )
    kernels = Pipeline("blocks").run(shared).func
    assert kernels.nodes[0].attrs["programs"] == GPU.processors
    x, w = (rng.standard_normal(p.shape).astype(np.float32) for p in func.params)
    given = [round_bf16(a) for a in (x, w)]
    np.testing.assert_allclose(kernels.interpret(*given), func.interpret(*given), rtol=1e-2)


@pytest.mark.parametrize("reads", [False, True])
def test_persistent_only_where_nothing_else_is_loaded(reads: bool) -> None:
    x, w, r = (param(n, tensor("bf16", 4096, 4096)) for n in "xwr")
    b = Builder()
    y = b.dot(x, w, rule="m k, n k -> m n")
    func = b.func("main", [x, w, r], [b.add(y, r) if reads else b.exp(y)])
    (group,) = Pipeline("fuse,schedule").run(func).func.nodes
    assert Schedule.parse(group.attrs["schedule"]).persistent is not reads


@pytest.mark.parametrize("shared", [False, True])
def test_not_persistent_beside_kernels_that_hold_processors(shared: bool) -> None:
    x, w = (param(n, tensor("bf16", 4096, 4096)) for n in "xw")
    b = Builder()
    func = b.func("main", [x, w], [b.exp(b.dot(x, w, rule="m k, n k -> m n"))])
    target = replace(GPU, shared=shared)
    (group,) = Pipeline("fuse,schedule").run(func, target=target).func.nodes
    assert Schedule.parse(group.attrs["schedule"]).persistent is not shared


def test_rows_that_data_picks_are_read_like_another_array() -> None:
    x, w, table = (param(n, tensor("bf16", 4096, 4096)) for n in "xwt")
    places = param("i", tensor("i64", 4096))
    b = Builder()
    rows = b.gather(table, places, rule="d! k, m -> m k")
    func = b.func("main", [x, w, table, places], [b.add(b.dot(x, w, rule="m k, n k -> m n"), rows)])
    (group,) = Pipeline("fuse,schedule").run(func).func.nodes
    assert not Schedule.parse(group.attrs["schedule"]).persistent


@pytest.mark.parametrize("shape", [(0, 4, 4), (4, 0, 4), (4, 4, 0)])
def test_empty_products(shape: tuple[int, int, int]) -> None:
    m, k, n = shape
    text = f"""func @f(%x: f32[{m}, {k}], %w: f32[{k}, {n}]) -> (f32[{m}, {n}]) at tensor {{
  %y = dot(%x, %w) {{rule="m k, k n -> m n"}} : f32[{m}, {n}]
  return %y
}}
"""
    Pipeline("layout,fuse,schedule").run(parse(text))


def tiles_of(func: Func, most: int = 8, target: Gpu = GPU) -> tuple[str, ...]:
    (group,) = Pipeline(f"fuse,schedule{{most={most}}}").run(func, target=target).func.nodes
    return schedules_of(group)


def test_a_library_is_measured_and_the_tiles_of_a_lone_product() -> None:
    assert LIBRARY in tiles_of(product(2048, 4096, 4096))


@pytest.mark.parametrize("case", ["another op follows", "integers"])
def test_no_library_for_what_it_does_not_do(case: str) -> None:
    x, w = (param(n, tensor("bf16", 256, 256)) for n in "xw")
    b = Builder()
    y = b.exp(b.dot(x, w, rule="m k, k n -> m n"))
    func = {
        "another op follows": b.func("main", [x, w], [y]),
        "integers": product(256, 256, 256, "i32"),
    }[case]
    assert LIBRARY not in tiles_of(func)


def test_the_model_takes_a_library_only_where_it_is_faster() -> None:
    func = product(4096, 4096, 4096, "f32")
    assert tiles_of(func, 1) != (LIBRARY,)
    fast = replace(GPU, f32_rate=GPU.bf16_rate)
    assert tiles_of(func, 1, fast) == (LIBRARY,)
    large = Product(4096, 4096, 4096)
    ours = predicted(ranked(large, F32, fast)[0], large, F32, fast).seconds
    assert library_seconds(large, F32, fast) < ours


@pytest.mark.parametrize("m", [8192, 12608])
def test_a_library_has_a_tile_between_ours(m: int) -> None:
    """192 columns fill the processors with whole waves, while tiles of 256 idle a third of them."""
    assert tiles_of(product(m, 768, 3072), 1) == (LIBRARY,)
    assert tiles_of(product(m, 3072, 768), 1) != (LIBRARY,)
    assert tiles_of(product(8192, 8192, 8192), 1) != (LIBRARY,)  # faster, but not for sure


def test_a_chosen_library_is_a_step_that_says_why(rng: np.random.Generator) -> None:
    func = product(96, 64, 32)
    grouped = Pipeline("fuse,schedule").run(func).func
    text = str(grouped)
    start = text.index("schedule=") + len("schedule=")
    own = text[start : text.index("}", start)]
    done = Pipeline("blocks,library").run(parse(text.replace(own, '"library"'))).func
    (step,) = done.nodes
    assert (step.attrs["kind"], step.attrs["why"]) == ("library", "a library is faster")
    given = [round_bf16(rng.standard_normal(p.shape).astype(np.float32)) for p in func.params]
    np.testing.assert_array_equal(done.interpret(*given), func.interpret(*given))


@pytest.mark.parametrize("persistent", ["", " persistent"])
@pytest.mark.parametrize(
    ("rows", "columns", "last", "nests"),
    [
        (229, 160, (16, 32), 2),  # 150 tiles: 13 lines of them fill the processors
        (229, 150, (32, 16), 2),
        (208, 160, (16, 32), 1),  # 130 tiles
        (16 * 66, 30, (16, 32), 1),  # 132 tiles: nothing is left
        (16 * 67, 30, (16, 32), 1),  # one tile is left
    ],
)
def test_smaller_tiles_take_what_does_not_fill_the_processors(
    rows: int,
    columns: int,
    last: tuple[int, int],
    nests: int,
    persistent: str,
    rng: np.random.Generator,
) -> None:
    text = f"m=16+{last[0]} n=16+{last[1]} k=16 warps=4 stages=2{persistent}"
    func = Pipeline("schedule").run(product(rows, columns, 20)).func
    (own,) = (t for n in func.nodes for t in schedules_of(n))
    lowered = Pipeline("blocks").run(parse(str(func).replace(own, text))).func
    verify(lowered)
    (kernel,) = lowered.nodes
    body = kernel.blocks[0]
    grids = [n for n in body.nodes if n.op == "loop" and n.attrs["kind"] == "grid"]
    assert len(grids) == nests
    x, w = (round_bf16(rng.normal(size=(n, 20)).astype(np.float32)) for n in (rows, columns))
    want = round_bf16((x @ w.T).astype(np.float32))
    np.testing.assert_allclose(lowered.interpret(x, w), want, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize(
    ("case", "has_last"),
    [
        (Product(12608, 768, 3072), True),  # 2.25 turns of large tiles
        (Product(8192, 768, 3072), True),
        (Product(12608, 2304, 768), False),  # short sums: their ends cost more than is saved
        (Product(128 * 132, 768, 3072), False),  # three
        (Product(12608, 768, 3072, batch=2), False),
        (Product(1024, 1024, 1024), False),  # none
    ],
)
def test_the_model_knows_what_smaller_tiles_save(case: Product, has_last: bool) -> None:
    for reads in (False, True):
        best = ranked(replace(case, reads=reads), BF16, GPU)[0]
        assert (best.last is not None) == has_last
    assert all(t.last is None for t in ranked(case, F32, GPU))


@pytest.mark.parametrize("sizes", [(0, 64, 64), (64, 0, 64), (0, 0, 64), (64, 64, 0)])
def test_products_without_elements_have_tiles(sizes: tuple[int, int, int]) -> None:
    for dtype in (BF16, F32):
        assert ranked(Product(*sizes), dtype, GPU)


# ---- f32 that may be rounded to TF32


def rounded(func: Func) -> Func:
    return parse(str(func).replace("dot(%x, %w) {", 'dot(%x, %w) {precision="tf32", '))


def test_rounded_products_have_tiles_of_half_the_depth() -> None:
    plain = product(8192, 3072, 768, "f32")
    (tile,) = tiles_of(rounded(plain), 1)
    assert Tile.of(Schedule.parse(tile)).rows >= 128
    assert LIBRARY not in tiles_of(rounded(plain))  # that rounds by a setting
    large = Product(8192, 3072, 768)
    loose = replace(large, rounds=True)
    kinds = large, loose, replace(loose, rounded=True)
    exact, in_loop, before = (best_seconds(p, F32, GPU) for p in kinds)
    assert in_loop < exact / 2
    assert before < exact / 3


def test_what_may_be_rounded_is_so_in_the_kernel(rng: np.random.Generator) -> None:
    """Through transposes, a stream and the tiles."""
    text = """func @f(%q: f32[2, 64, 32], %k: f32[2, 32, 64]) -> (f32[2, 64, 32]) at tensor {
  %t = transpose(%k) {perm=[0, 2, 1]} : f32[2, 64, 32]
  %d = dot(%q, %t) {precision="tf32", rule="a m c, a n c -> a m n"} : f32[2, 64, 64]
  %m = reduce(%d) {axes=[2], kind="max"} : f32[2, 64]
  %b = broadcast(%m) {axes=[0, 1]} : f32[2, 64, 64]
  %s = sub(%d, %b) : f32[2, 64, 64]
  %e = exp(%s) : f32[2, 64, 64]
  %y = dot(%e, %t) {precision="tf32", rule="a m n, a n c -> a m c"} : f32[2, 64, 32]
  return %y
}
"""
    spec = "canonicalize,layout,stream{loops=blocks},fuse,coalesce,schedule,blocks"
    func = Pipeline(spec).run(parse(text)).func
    (kernel,) = (n for n in func.nodes if n.op == "kernel")
    dots = [n for _, n in walk(kernel.blocks[0]) if n.op == "dot"]
    assert [d.attrs["precision"] for d in dots] == ["tf32"] * 2
    shapes = (2, 64, 32), (2, 32, 64)
    arrays = [rng.standard_normal(s, dtype=np.float32) for s in shapes]
    want = parse(text).interpret(*arrays)
    np.testing.assert_allclose(func.interpret(*arrays), want, rtol=1e-4, atol=1e-4)
