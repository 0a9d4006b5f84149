"""Lanes that are equally far apart: whole vectors are loaded where they cover several."""

from __future__ import annotations

import numpy as np
import pytest
from executed import agrees, func_of

from stack.backends.mlir.steps import step_of_index
from stack.ir import Builder, Func, Node, tensor
from stack.run.compile import compile_func

pytest.importorskip("torch_mlir")
SIZES = (1, 2, 3, 15, 16, 17, 63, 64, 65, 130)


def windows(dtype: str, rows: int, lanes: int, step: int, row: int) -> Func:
    """Rows of lanes so many elements apart, of the memory that they span."""

    def build(b: Builder, x: Node) -> Node:
        read = b.unfold(x, axis=0, window=(lanes,), stride=(row,), dilation=(step,))
        type_ = tensor("i32", rows, lanes)
        return b.cast(read, type=type_) if dtype == "bool" else b.add(read, read)

    return func_of(build, [(dtype, (rows - 1) * row + (lanes - 1) * step + 1)])


def drawn(func: Func, rng: np.random.Generator) -> np.ndarray:
    p = func.params[0].tensor
    return rng.integers(0, 2 if p.dtype.kind == "b" else 9, p.shape).astype(p.dtype.numpy)


@pytest.mark.each
@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16", "f64", "i8", "bool"])
@pytest.mark.parametrize("step", [1, 2, 3, 5, 8, 9])
def test_values(dtype: str, step: int, rng: np.random.Generator) -> None:
    lanes = SIZES[int(rng.integers(len(SIZES)))]
    func = windows(dtype, 3, lanes, step, row=lanes * step + 2)
    agrees(compile_func(func, "mlir", options={"cache": False}), func, [drawn(func, rng)], 0)


def backwards(dtype: str, rows: int, lanes: int, step: int) -> Func:
    """Rows that are read from their last element to the first."""

    def build(b: Builder, x: Node) -> Node:
        limit = (rows, (lanes - 1) * step + 1)
        read = b.slice(b.reverse(x, axes=(1,)), start=(0, 0), limit=limit, step=(1, step))
        type_ = tensor("i32", rows, lanes)
        return b.cast(read, type=type_) if dtype == "bool" else b.add(read, read)

    return func_of(build, [(dtype, rows, lanes * step)])


@pytest.mark.each
@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16", "f64", "i8", "bool", "i64"])
@pytest.mark.parametrize("step", [1, 2, 3, 9])
def test_values_of_lanes_that_go_backwards(dtype: str, step: int, rng: np.random.Generator) -> None:
    lanes = SIZES[int(rng.integers(len(SIZES)))]
    func = backwards(dtype, 3, lanes, step)
    agrees(compile_func(func, "mlir", options={"cache": False}), func, [drawn(func, rng)], 0)


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_values_of_masked_lanes_that_go_backwards(dtype: str, rng: np.random.Generator) -> None:
    """The border is no number: it moves with the block of a long row."""

    def build(b: Builder, x: Node, y: Node) -> Node:
        return b.concat(b.reverse(x, axes=(0,)), y, b.reverse(y, axes=(0,)), axis=0)

    func = func_of(build, [(dtype, 9001), (dtype, 12345)])
    x, y = (rng.normal(size=p.tensor.shape).astype(p.dtype.numpy) for p in func.params)
    agrees(compile_func(func, "mlir", options={"cache": False}), func, [x, y], 0)


@pytest.mark.parametrize("step, gathers", [(1, False), (4, False), (5, True)])
def test_backwards_is_as_far(step: int, gathers: bool) -> None:
    func = backwards("f32", 3, 64, step)
    made = compile_func(func, "mlir", options={"cache": False, "target": "avx2"})
    text = made.artifacts["mlir"]
    assert ("masked.gather" in (text if isinstance(text, str) else text())) == gathers


@pytest.mark.slow
@pytest.mark.parametrize("lanes", SIZES)
@pytest.mark.parametrize("step", range(1, 18))
def test_all_sizes(lanes: int, step: int, rng: np.random.Generator) -> None:
    func = windows("f32", 2, lanes, step, row=7)
    agrees(compile_func(func, "mlir", options={"cache": False}), func, [drawn(func, rng)], 0)


@pytest.mark.parametrize("step, gathers", [(2, False), (4, False), (5, True), (16, True)])
def test_what_no_vector_covers_is_gathered(step: int, gathers: bool) -> None:
    """A register of AVX2 has 8 lanes: it covers two of those that are 4 apart."""
    func = windows("f32", 3, 64, step, row=1024)
    made = compile_func(func, "mlir", options={"cache": False, "target": "avx2"})
    text = made.artifacts["mlir"]
    assert ("masked.gather" in (text if isinstance(text, str) else text())) == gathers


def test_what_lies_between_is_not_looked_at(rng: np.random.Generator) -> None:
    """Signed zeros and infinities come as they are; a nan beside them changes nothing."""
    func = windows("f32", 3, 33, 2, row=80)
    x = np.full(func.params[0].shape, np.nan, np.float32)  # pyright: ignore[reportArgumentType]
    places = 80 * np.arange(3)[:, None] + 2 * np.arange(33)
    x[places] = rng.choice(np.array([0.0, -0.0, np.inf, -np.inf, 1.5], np.float32), (3, 33))
    (found,) = compile_func(func, "mlir", options={"cache": False}).run([x])
    assert (found == 2 * x[places]).all()
    assert (np.signbit(found) == np.signbit(x[places])).all()


def test_an_index_of_many_shared_values_is_given_up_at_once() -> None:
    """Each value is used twice by the next: a walk along all paths would not end."""
    b = Builder()
    index = b.iota(axis=0, type=tensor("i64", 16))
    for _ in range(60):
        index = b.min(b.add(index, 1), b.add(index, 2))
    assert step_of_index(index) is None
