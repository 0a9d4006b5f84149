"""Transposed operands on a CPU: blocks of lines are staged, and so are blocks of short rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from cpu_steps import check_steps, lowered, steps_of
from executed import func_of

import stack
from stack.ir import Builder, Func, Node
from stack.ir.bounds import LARGEST_LOCAL
from stack.ir.builder import constant
from stack.passes.policies.step_lowering import plain_nest
from stack.passes.steps.primitives import StageMem
from stack.passes.tiling.single_ops import alone
from stack.target import as_cpu, load

CENTRED = """func @main(%x: f32[5, 32]) -> (f32[32, 5]) at tensor {
  %t = transpose(%x) {perm=[1, 0]} : f32[32, 5]
  %s = reduce(%t) {axes=[1], kind="sum"} : f32[32]
  %m = broadcast(%s) {axes=[0]} : f32[32, 5]
  %y = sub(%t, %m) : f32[32, 5]
  return %y
}
"""
SHORT = """func @main(%x: f32[3, 20]) -> (f32[20, 4]) at tensor {
  %t = transpose(%x) {perm=[1, 0]} : f32[20, 3]
  %y = pad(%t, 0.0:f32) {high=[0, 1], interior=[0, 0], low=[0, 0]} : f32[20, 4]
  return %y
}
"""
STEPS = {
    CENTRED: "split i 8 tail=peel; stage_mem p0 i.1; vectorize r; bind i.0 cores",
    SHORT: "reorder i j; stage_mem o0 j; vectorize i",
}


@pytest.mark.parametrize("text", STEPS, ids=["centred", "short rows"])
def test_steps_before_and_expected(text: str) -> None:
    check_steps(text, STEPS[text])


# ---- lines are copied


def is_read_in_blocks(func: Func) -> bool:
    return any(step.startswith("stage_mem p0") for step in steps_of(func))


def less_sums(b: Builder, v: Node) -> Node:
    """Rows without their sums."""
    total = b.reduce(v, kind="sum", axes=(1,))
    return b.sub(v, b.broadcast(total, axes=(0,), type=v.type))


def across(rows: int, width: int, dtype: str = "f32") -> Func:
    """Rows without their sums, of an array that has them as columns."""
    return func_of(lambda b, x: less_sums(b, b.transpose(x, perm=(1, 0))), [(dtype, width, rows)])


@pytest.mark.parametrize("target", ["generic", "avx2", "avx512"])
@pytest.mark.parametrize("size", [8, 9, 16, 17])
def test_a_matrix_beside_its_transpose(size: int, target: str) -> None:
    """Both are read at one corner, each along another axis: their copies differ."""
    square = [("f32", size, size)]
    x = np.random.default_rng(size).standard_normal((size, size), np.float32)
    for build in (
        lambda b, x: b.sub(b.transpose(x, perm=(1, 0)), x),
        lambda b, x: b.sub(x, b.transpose(x, perm=(1, 0))),
        lambda b, x: less_sums(b, b.mul(b.transpose(x, perm=(1, 0)), x)),
    ):
        func = func_of(build, square)
        np.testing.assert_array_equal(lowered(func, target).interpret(x), func.interpret(x))


def test_a_block_has_eight_lines_or_more() -> None:
    assert is_read_in_blocks(across(8, 5))
    assert not is_read_in_blocks(across(7, 5))


def test_a_block_has_the_lines_of_a_vector() -> None:
    assert "split i 8 tail=peel" in steps_of(across(64, 64))
    assert "split i 16 tail=peel" in steps_of(across(64, 64, "bf16"))
    assert not is_read_in_blocks(across(64, 64, "i64"))  # four


def test_contiguous_rows_are_not_copied() -> None:
    assert not is_read_in_blocks(func_of(less_sums, [("f32", 64, 64)]))


def test_nor_sums_of_columns_whose_lanes_are_contiguous() -> None:
    func = func_of(lambda b, x: b.reduce(x, kind="sum", axes=(0,)), [("f32", 64, 64)])
    assert not is_read_in_blocks(func)


def test_a_block_fits_into_the_cache() -> None:
    """A quarter of it has eight lines of four bytes an element."""
    most = as_cpu(load("avx2")).cache_bytes // 4 // 32
    assert is_read_in_blocks(across(64, most))
    assert not is_read_in_blocks(across(64, most + 1))


@pytest.mark.parametrize("dtype", ["f32", "bf16", "i64"])
@pytest.mark.parametrize("rows, width", [(16, 1), (17, 3), (33, 16), (41, 29), (64, 64), (0, 3)])
def test_centred_columns(rows: int, width: int, dtype: str) -> None:
    func = across(rows, width, dtype)
    x = np.random.default_rng(rows).integers(-9, 9, (width, rows))
    x = x.astype(func.params[0].dtype.numpy)
    np.testing.assert_array_equal(lowered(func).interpret(x), func.interpret(x))


Pads = tuple[tuple[int, int], ...]


def padded(
    shape: tuple[int, ...],
    perm: tuple[int, ...],
    pads: Pads,
    dtype: str = "f32",
    interior: tuple[int, ...] = (),
) -> Func:
    """A transposed array with sevens around it, and between its elements."""
    low, high = zip(*pads, strict=True)

    def build(b: Builder, x: Node) -> Node:
        v = b.transpose(x, perm=perm)
        between = interior or (0,) * len(low)
        return b.pad(v, constant(7, v.dtype), low=low, high=high, interior=between)

    return func_of(build, [(dtype, *shape)])


NONE, ONE = (0, 0), (1, 1)
# an array, its axes as they are read, what is around it, whether blocks of it are copied
PADDED: dict[str, tuple[tuple[int, ...], tuple[int, ...], Pads, bool]] = {
    "an image": ((2, 9, 9, 11), (0, 2, 3, 1), (NONE, ONE, ONE, NONE), True),
    "more on one side": ((1, 9, 4, 19), (0, 2, 3, 1), (NONE, (0, 2), (3, 0), NONE), True),
    "more around it than in it": ((9, 2, 8), (1, 2, 0), ((4, 9), (7, 8), NONE), True),
    "of few places": ((6, 3, 3), (1, 2, 0), (ONE, ONE, NONE), False),
    "of no place": ((6, 2, 0), (1, 2, 0), (ONE, ONE, NONE), False),
    "of one place": ((6, 2, 1), (1, 2, 0), (ONE, ONE, NONE), False),
    "around the outer axis alone": ((9, 3, 20), (1, 2, 0), ((2, 1), NONE, NONE), True),
    "along lanes": ((5, 20), (1, 0), (NONE, ONE), False),
}


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize("name", PADDED)
def test_what_is_around_an_array_has_code_of_its_own(name: str, dtype: str) -> None:
    shape, perm, pads, is_in_blocks = PADDED[name]
    func = padded(shape, perm, pads, dtype)
    x = np.random.default_rng(len(name)).integers(-9, 9, shape)
    x = x.astype(func.params[0].dtype.numpy)
    np.testing.assert_array_equal(lowered(func).interpret(x), func.interpret(x))
    if 0 not in shape:
        assert is_read_in_blocks(padded(shape, perm, pads)) == is_in_blocks


@pytest.mark.parametrize("interior", [(1, 0), (0, 1)])
def test_lines_under_a_condition_are_not_copied(interior: tuple[int, int]) -> None:
    """They may begin before the array, or end after it."""
    func = padded((40, 40), (1, 0), (ONE, ONE), interior=interior)
    assert not is_read_in_blocks(func)
    x = np.random.default_rng(0).normal(size=(40, 40)).astype(np.float32)
    np.testing.assert_array_equal(lowered(func).interpret(x), func.interpret(x))


@pytest.mark.parametrize("perm", [(1, 0), (2, 0, 1), (1, 2, 0), (0, 2, 1), (3, 1, 0, 2)])
def test_blocks_follow_the_lines_that_are_read(perm: tuple[int, ...]) -> None:
    """Along whichever axis these go: channels of an image that were the last axis, above all."""
    shape = (9, 17, 10, 33)[: len(perm)]

    def build(b: Builder, x: Node) -> Node:
        made = b.transpose(x, perm=perm)
        return b.add(made, made)

    func = func_of(build, [("f32", *shape)])
    assert is_read_in_blocks(func)
    values = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    np.testing.assert_array_equal(lowered(func).interpret(values), func.interpret(values))


# ---- rows shorter than a vector


def are_short(func: Func) -> bool:
    return any(step.startswith("stage_mem o0") for step in steps_of(func))


def transposed(shape: tuple[int, ...], dtype: str = "f32") -> Func:
    perm = (*range(1, len(shape)), 0)
    return func_of(lambda b, x: b.transpose(x, perm=perm), [(dtype, *shape)])


@pytest.mark.parametrize("rows, row, expected", [
    (8, 7, True),
    (7, 7, False),  # rows do not fill a vector
    (8, 8, False),  # a row does
    (8, 1, False),  # one line is contiguous both ways
])  # fmt: skip
def test_a_vector_of_rows(rows: int, row: int, expected: bool) -> None:
    assert are_short(transposed((row, rows))) is expected


def test_sums_along_a_row_are_not() -> None:
    assert not are_short(across(20, 3))


def test_nor_bits_in_bytes() -> None:
    assert not are_short(transposed((3, 20), "bool"))


@pytest.mark.parametrize("dtype, row, expected", [
    ("f32", 5, False), ("f32", 2, False), ("bf16", 3, True), ("bf16", 4, False), ("i8", 7, True),
])  # fmt: skip
def test_contiguous_rows_are_where_lanes_would_idle(dtype: str, row: int, expected: bool) -> None:
    """Less than a quarter of a vector."""

    def build(b: Builder, x: Node) -> Node:
        return b.pad(x, constant(7, x.dtype), low=(0, 0), high=(0, 1), interior=(0, 0))

    func = func_of(build, [(dtype, 20, row - 1)])
    assert are_short(func) is expected
    values = np.random.default_rng(row).integers(-9, 9, (20, row - 1))
    values = values.astype(func.params[0].dtype.numpy)
    np.testing.assert_array_equal(lowered(func).interpret(values), func.interpret(values))


@pytest.mark.parametrize("size, expected", [(40, True), (20, False)])
def test_the_most_of_what_is_read_decides(size: int, expected: bool) -> None:
    def build(b: Builder, x: Node, y: Node) -> Node:
        part = b.slice(x, start=(0, 0), limit=(5, 20), step=(1, 1))
        return b.add(b.transpose(part, perm=(1, 0)), y)

    assert are_short(func_of(build, [("f32", 5, size), ("f32", 20, 5)])) is expected


@pytest.mark.parametrize("dtype", ["f32", "bf16", "i64", "i8"])
@pytest.mark.parametrize("shape", [(2, 8), (3, 17), (5, 513), (7, 1100), (4, 3, 9), (3, 0)])
def test_short_rows(shape: tuple[int, ...], dtype: str) -> None:
    func = transposed(shape, dtype)
    x = np.random.default_rng(shape[-1]).integers(-9, 9, shape)
    x = x.astype(func.params[0].dtype.numpy)
    np.testing.assert_array_equal(lowered(func).interpret(x), func.interpret(x))


@pytest.mark.parametrize("dtype", ["f32", "i8"])
def test_short_rows_of_two_results(dtype: str) -> None:
    """Each result has a block of its own."""

    def build(b: Builder, x: Node, y: Node) -> tuple[Node, Node]:
        low = b.min(b.transpose(x, perm=(1, 0)), y)
        return low, b.add(low, y)

    func = func_of(build, [(dtype, 3, 70), (dtype, 70, 3)])
    staged = [step for step in steps_of(func) if step.startswith("stage_mem")]
    assert staged == (
        ["stage_mem o0 j", "stage_mem o1 j"] if dtype == "i8" else ["stage_mem p0 i.1"]
    )
    rng = np.random.default_rng(3)
    x, y = (rng.integers(-9, 9, p.shape).astype(p.dtype.numpy) for p in func.params)
    for found, want in zip(lowered(func).interpret(x, y), func.interpret(x, y), strict=True):
        np.testing.assert_array_equal(found, want)


def image(x: Any) -> Any:
    """With its channels last, and one more of them."""
    import torch

    padded = torch.nn.functional.pad(x.permute(0, 2, 3, 1), (0, 1, 1, 2, 3, 1))
    return padded.contiguous(), padded.abs().bfloat16().contiguous()


@pytest.mark.every(2)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64", "int8"])
@pytest.mark.parametrize("shape", [(2, 3, 5, 40), (1, 2, 7, 16), (2, 3, 3, 600), (1, 5, 1, 31)])
@pytest.mark.parametrize("last", [False, True])
def test_images(shape: tuple[int, ...], dtype: str, last: bool) -> None:
    torch = pytest.importorskip("torch")
    x = 10 * torch.randn(shape, generator=torch.Generator().manual_seed(0))
    if dtype != "int8":
        x.view(-1)[:3] = torch.tensor([torch.inf, torch.nan, -0.0])
    x = x.to(getattr(torch, dtype))
    x = x.to(memory_format=torch.channels_last) if last else x
    compiled = stack.compile(image, x, backend="mlir")
    for made, wanted in zip(compiled(x), image(x), strict=True):
        torch.testing.assert_close(made, wanted, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("rows", [3, 40])
def test_each_thread_has_lines_of_its_own(rows: int) -> None:
    """Results that are stored at once, and memory that is read in blocks."""
    torch = pytest.importorskip("torch")
    x = torch.randn(rows, 1_200_000 // rows, generator=torch.Generator().manual_seed(0))
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    try:
        compiled = stack.compile(lambda x: x.t().contiguous(), x, backend="mlir")
        assert all(torch.equal(compiled(x), x.t()) for _ in range(20))
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("width", [3, 13107, 13108])
def test_lines_are_no_more_than_a_stack_holds(width: int) -> None:
    """Lines of 80 bytes each; a MiB of them at most."""
    cpu = as_cpu(load("avx512"))
    (node,) = transposed((width, 20)).nodes
    why = StageMem("p0", "i").why_not(plain_nest(alone(node), cpu), cpu)
    assert bool(why) == (80 * width > LARGEST_LOCAL)
