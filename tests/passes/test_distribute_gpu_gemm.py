"""Matrix products on a GPU: all schedules mean what einsum in f64 says."""

from __future__ import annotations

import numpy as np
import pytest
from gpu_cases import (
    EPILOGUES,
    PRODUCTS,
    RUNGS,
    Build,
    Shape,
    assert_near,
    backwards,
    einsum,
    epilogue_of,
    floats,
    gpu_func,
    product_of,
    several,
)
from kernel_cases import program

from stack.ir import Func, parse, verify


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
    func = sound(gpu_func(product_of(rule, first, second, dtype)))
    assert_near(func.interpret(*arrays), einsum(rule, *arrays), dtype)


@pytest.mark.parametrize("dtype", ["f64", "f16"])
@pytest.mark.parametrize("rule", ["m k, k n -> m n", "k m, n k -> m n"])
def test_other_floats(dtype: str, rule: str, rng: np.random.Generator) -> None:
    sizes = {"m": 19, "k": 24, "n": 40}
    operands = [tuple(sizes[n] for n in part.split()) for part in rule.split(" -> ")[0].split(",")]
    arrays = [floats(s, dtype, rng) for s in operands]
    func = sound(gpu_func(product_of(rule, operands[0], operands[1], dtype)))
    assert_near(func.interpret(*arrays), einsum(rule, *arrays), dtype)


@pytest.mark.parametrize("rung", list(RUNGS))
def test_programs_may_run_in_any_order(
    rung: str, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    backwards(monkeypatch)
    rule, first, second = "m k, n k -> m n", (20, 264), (24, 264)
    arrays = [floats(s, "bf16", rng) for s in (first, second)]
    func = sound(gpu_func(product_of(rule, first, second, "bf16"), RUNGS[rung], "sm_80"))
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


def test_what_the_rungs_of_the_ladder_are_made_of() -> None:
    group = product_of("m k, k n -> m n", (256, 512), (512, 256), "bf16")
    text = {name: str(gpu_func(group, given, "sm_80")) for name, given in RUNGS.items()}
    for name, found in text.items():
        assert ("mma_sync(" in found) == (name in ("tensor", "pipelined")), name
        assert ("async_copy(" in found) == (name == "pipelined"), name
        assert ("fma(" in found) == (name not in ("tensor", "pipelined")), name
    # operands lie in shared memory; of the two lower rungs only where lanes would store a column
    assert [text[name].count("alloc(") for name in RUNGS][1:4] == [0, 2, 2]
    assert text["pipelined"].count("async_copy(") == 6  # two operands, two iterations ahead


@pytest.mark.parametrize("rule", ["m k, n k -> m n", "k m, k n -> m n"])
@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_programs_of_wide_floats_may_run_in_any_order(
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


def test_sums_of_one_block_of_depth_are_added_up_apart() -> None:
    text = str(gpu_func(product_of("m k, k n -> m n", (64, 256), (256, 64), "f32"), "m=64 n=64"))
    assert "part_" in text
    narrow = str(gpu_func(product_of("m k, k n -> m n", (64, 256), (256, 64), "bf16"), "m=64 n=64"))
    assert "part_" not in narrow


def test_f32_and_integers_stay_off_tensor_cores() -> None:
    for dtype in ("f32", "f64", "i32"):
        group = product_of("m k, k n -> m n", (16, 16), (16, 16), dtype)
        assert "mma" not in str(gpu_func(group))


@pytest.mark.parametrize("rule", ["m k, k n -> m n", "k m, n k -> m n"])
def test_integers_are_exact(rule: str, rng: np.random.Generator) -> None:
    sizes = {"m": 19, "k": 300, "n": 40}
    operands = [tuple(sizes[n] for n in part.split()) for part in rule.split(" -> ")[0].split(",")]
    arrays = [rng.integers(-99, 99, s).astype(np.int32) for s in operands]
    func = sound(gpu_func(product_of(rule, operands[0], operands[1], "i32")))
    np.testing.assert_array_equal(func.interpret(*arrays), einsum(rule, *arrays))


@pytest.mark.parametrize(
    ("rule", "first", "second"),
    [
        ("s h d, h n d -> s n", (20, 3, 300), (3, 40, 300)),
        ("h s g d, n h g d -> s n", (3, 20, 2, 20), (40, 3, 2, 20)),
        ("s h d, h d -> s", (20, 3, 300), (3, 300)),
    ],
)
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_several_axes_are_contracted_one_by_one(
    rule: str, first: Shape, second: Shape, dtype: str, rng: np.random.Generator
) -> None:
    arrays = [floats(s, dtype, rng) for s in (first, second)]
    func = sound(gpu_func(product_of(rule, first, second, dtype)))
    assert_near(func.interpret(*arrays), einsum(rule, *arrays), dtype)
