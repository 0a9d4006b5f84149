"""Matrix products on a GPU: all schedules mean what einsum in f64 says."""

from __future__ import annotations

import re

import numpy as np
import pytest
from gpu_cases import (
    EPILOGUES,
    PRODUCTS,
    Build,
    Shape,
    assert_near,
    backwards,
    einsum,
    epilogue_of,
    floats,
    gpu_func,
    gpu_kernel,
    product_of,
    several,
)
from kernel_cases import program

from stack.ir import Func, parse, verify
from stack.ir.types import BF16, F32, F64
from stack.passes.distribute_gpu import PRODUCTS as SCHEDULES
from stack.passes.distribute_gpu import CannotDistribute
from stack.passes.gpu_loops.tile_policy import ranked_tiles
from stack.passes.tile_gpu import tile_gpu_group as tile_group
from stack.target import as_gpu

GPU = as_gpu(None)
LADDER = {"naive": (32, 8), "coalesced": (8, 32), "shared": (32, 32), "register": (64, 64),
          "tensor": (64, 64), "pipelined": (64, 64)}  # fmt: skip


def sound(func: Func) -> Func:
    verify(func)
    assert parse(str(func)) is func
    return func


# threads that hold their sums take the interpreter long: f32 gets some of the shapes
@pytest.mark.parametrize(
    ("dtype", "rule", "first", "second"),
    [("bf16", *p) for p in PRODUCTS] + [("f32", *PRODUCTS[i]) for i in (1, 4, 8, 9)],
)
def test_products(
    dtype: str, rule: str, first: Shape, second: Shape, rng: np.random.Generator
) -> None:
    arrays = [floats(s, dtype, rng) for s in (first, second)]
    func = sound(gpu_func(product_of(rule, first, second, dtype), "auto", 64, 64))
    assert_near(func.interpret(*arrays), einsum(rule, *arrays), dtype)


@pytest.mark.parametrize("dtype", ["f64", "f16"])
@pytest.mark.parametrize("rule", ["m k, k n -> m n", "k m, n k -> m n"])
def test_other_floats(dtype: str, rule: str, rng: np.random.Generator) -> None:
    sizes = {"m": 19, "k": 24, "n": 40}
    operands = [tuple(sizes[n] for n in part.split()) for part in rule.split(" -> ")[0].split(",")]
    arrays = [floats(s, dtype, rng) for s in operands]
    func = sound(gpu_func(product_of(rule, operands[0], operands[1], dtype)))
    assert_near(func.interpret(*arrays), einsum(rule, *arrays), dtype)


@pytest.mark.parametrize("product", list(SCHEDULES))
def test_every_rung_of_the_ladder(product: str, rng: np.random.Generator) -> None:
    rule, first, second = "m k, k n -> m n", (33, 24), (24, 16)
    arrays = [floats(s, "bf16", rng) for s in (first, second)]
    rows, columns = LADDER[product]
    func = sound(gpu_func(product_of(rule, first, second, "bf16"), product, rows, columns))
    assert_near(func.interpret(*arrays), einsum(rule, *arrays), "bf16")


@pytest.mark.parametrize("product", ["shared", "register", "tensor", "pipelined"])
def test_threads_may_run_in_any_order(
    product: str, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    backwards(monkeypatch)
    depth = 72 if product in ("tensor", "pipelined") else 34
    rule, first, second = "m k, n k -> m n", (20, depth), (24, depth)
    arrays = [floats(s, "bf16", rng) for s in (first, second)]
    rows, columns = (16, 16) if product in ("tensor", "pipelined") else (20, 12)
    func = gpu_func(product_of(rule, first, second, "bf16"), product, rows, columns)
    assert_near(func.interpret(*arrays), einsum(rule, *arrays), "bf16")


@pytest.mark.parametrize(("build", "shapes"), EPILOGUES, ids=lambda c: getattr(c, "__name__", None))
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_epilogues(build: Build, shapes: list[Shape], dtype: str, rng: np.random.Generator) -> None:
    group = epilogue_of(build, shapes, dtype)
    arrays = [floats(s, dtype, rng) for s in shapes]
    want = program(epilogue_of(build, shapes, "f64")).interpret(
        *[a.astype(np.float64) for a in arrays]
    )
    found = sound(gpu_func(group)).interpret(*arrays)
    for got, exact in zip(several(found), several(want), strict=True):
        assert_near(got, exact, dtype)


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_inf_and_nan_reach_what_they_touch_and_nothing_else(
    dtype: str, rng: np.random.Generator
) -> None:
    """Neither the padding of a tile nor that of the depth lets them in elsewhere."""
    x, w = floats((9, 20), dtype, rng), floats((70, 20), dtype, rng)
    x[3, 5], x[8, 19], w[69, 2] = np.inf, np.nan, -np.inf
    with np.errstate(all="ignore"):
        want = einsum("m k, n k -> m n", x, w)
        found = gpu_func(product_of("m k, n k -> m n", x.shape, w.shape, dtype)).interpret(x, w)
    assert_near(found, want, dtype)


def test_pipelined_products_wait_once_for_each_block_of_depth() -> None:
    kernel = gpu_kernel(product_of("m k, k n -> m n", (256, 256), (256, 256), "bf16"), "pipelined")
    text = str(program(kernel))
    assert text.count("async_wait(") == 1
    assert text.count("async_copy(") == 6  # two operands; two blocks before the loop, one in it
    assert text.count("= mma(") == 1
    plain = gpu_kernel(product_of("m k, k n -> m n", (256, 256), (256, 256), "bf16"), "tensor")
    assert "async" not in str(program(plain))
    single = gpu_kernel(product_of("m k, k n -> m n", (256, 256), (256, 256), "f32"))
    assert str(program(single)).count("async_wait(") == 1
    assert str(program(single)).count("= fma(") == 1


@pytest.mark.parametrize("rule", ["m k, n k -> m n", "k m, k n -> m n"])
@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_threads_of_wide_floats_may_run_in_any_order(
    rule: str, dtype: str, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tail of rows, of columns and of depth."""
    backwards(monkeypatch)
    sizes = {"m": 6, "k": 34, "n": 35}
    first, second = (
        tuple(sizes[n] for n in part.split()) for part in rule.split(" -> ")[0].split(", ")
    )
    arrays = [floats(s, dtype, rng) for s in (first, second)]
    func = sound(gpu_func(product_of(rule, first, second, dtype)))
    assert_near(func.interpret(*arrays), einsum(rule, *arrays), dtype)


@pytest.mark.parametrize(("rows", "columns"), [(128, 128), (64, 64), (32, 32), (1, 128)])
def test_four_warps_share_every_tile_of_f32(rows: int, columns: int) -> None:
    group = product_of("m k, k n -> m n", (rows, 64), (64, columns), "f32")
    text = str(gpu_func(group, "auto", rows, columns))
    warps = "8" if rows * columns > 64 * 128 else "4"
    assert set(re.findall(r"%w__\d+ < (\d+)", text)) == {warps}


def test_sums_of_one_block_of_depth_are_added_up_apart() -> None:
    text = str(gpu_func(product_of("m k, k n -> m n", (64, 256), (256, 64), "f32")))
    assert '{name="sums' in text
    assert '{name="part' in text
    narrow = str(gpu_func(product_of("m k, k n -> m n", (64, 256), (256, 64), "bf16")))
    assert '{name="part' not in narrow


def test_odd_rows_cannot_be_copied_asynchronously() -> None:
    group = product_of("m k, k n -> m n", (16, 33), (33, 32), "bf16")
    with pytest.raises(CannotDistribute, match="take 4 bytes, not 2"):
        gpu_kernel(group, "pipelined")
    assert "mma" in str(gpu_func(group))


def test_f32_stays_off_tensor_cores() -> None:
    group = product_of("m k, k n -> m n", (16, 16), (16, 16), "f32")
    assert "mma" not in str(gpu_func(group))
    with pytest.raises(CannotDistribute, match="16-bit floats, not f32"):
        gpu_kernel(group, "tensor")


def test_tiles_shrink_where_blocks_are_few() -> None:
    assert ranked_tiles(4096, 4096, 1, BF16, GPU)[0] == (128, 128)
    assert ranked_tiles(4096, 4096, 1, F32, GPU)[0] == (128, 128)
    assert ranked_tiles(4096, 4096, 1, F64, GPU)[0] == (64, 64)
    assert ranked_tiles(64, 64, 1, F32, GPU)[0] == (32, 32)
    small = ranked_tiles(128, 768, 1, BF16, GPU)[0]
    assert small[0] * small[1] < 64 * 64
    assert ranked_tiles(1, 4096, 1, BF16, GPU)[0][0] == 16
    assert ranked_tiles(128, 768, 64, BF16, GPU)[0] > small


def test_tiles_are_no_larger_than_the_product() -> None:
    tiled = tile_group(product_of("m k, k n -> m n", (8, 32), (32, 24), "bf16"), 128, 128)
    assert "f32<8x24>" in str(program(tiled))
