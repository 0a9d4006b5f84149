"""Streams over columns: memory is contiguous along another axis than the streamed one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from stream_harness import prepared

import stack
from stack.ir import Func, parse, verify
from stack.ir.node import Node, walk
from stack.passes.tiling.single_ops import alone
from stack.rewrite import Pipeline
from stack.target import as_gpu

torch = pytest.importorskip("torch")
Tensor = Any
GPU = as_gpu(None)


def softmax(x: Tensor) -> Tensor:
    return x.softmax(1)


def norm(x: Tensor) -> Tensor:
    away = x - x.mean(1, keepdim=True)
    return away * torch.rsqrt((away * away).mean(1, keepdim=True) + 1e-6)


def variance(x: Tensor) -> Tensor:
    return x.var(1)


def lowered(fn: Any, x: Tensor) -> Func:
    func = prepared(stack.trace(fn, x))
    steps = "stream{min_axis=32769,loops=blocks},split_reductions,fuse,coalesce,blocks"
    result = Pipeline(steps).run(func, target=GPU).func
    verify(result)
    assert parse(str(result)) is result
    return result


@pytest.mark.parametrize("offset", [0.0, 1e3])
@pytest.mark.parametrize("shape", [(2, 17, 1), (3, 64, 32), (1, 255, 129), (2, 700, 33)])
@pytest.mark.parametrize("fn", [softmax, norm, variance], ids=lambda f: f.__name__)
def test_columns(fn: Any, shape: tuple[int, ...], offset: float, rng: np.random.Generator) -> None:
    x = (rng.standard_normal(shape) + offset).astype(np.float32)
    func = lowered(fn, torch.from_numpy(x))
    with np.errstate(all="ignore"):
        got = np.asarray(func.interpret(x))
    exact = fn(torch.from_numpy(x).double()).numpy()
    # the interpreter adds one element after the other: a mean of 1e3 is off by 1e-4
    np.testing.assert_allclose(got, exact, rtol=2e-3 if offset else 1e-5, atol=1e-6 * (1 + offset))


def test_a_program_has_columns_that_are_contiguous() -> None:
    func = lowered(variance, torch.empty(528, 2100, 128, device="meta"))
    (kernel,) = [n for n in func.nodes if n.op == "kernel"]
    assert "f32<64x16>" in str(func) or "f32<16x64>" in str(func)
    assert kernel.attrs["warps"] == 2


def test_few_columns_are_computed_in_parts() -> None:
    func = lowered(variance, torch.zeros(1, 1 << 20, 64))
    assert [n.op for n in func.nodes].count("kernel") == 2


def test_short_columns_and_rows_are_no_streams() -> None:
    """Twins: a column that a tile has as a whole, and a reduction along memory."""
    for fn, x in ((variance, torch.zeros(4, 16, 64)), (lambda x: x.var(2), torch.zeros(4, 16, 64))):
        func = prepared(stack.trace(fn, x))
        made = Pipeline("stream{min_axis=32769,loops=blocks}").run(func, target=GPU).func
        assert not any(n.op == "stream" for n in made.nodes)


def positions(shape: tuple[int, ...], kind: str, rng: np.random.Generator) -> np.ndarray:
    """Values with ties; some rows and columns with nan, infinities or zeros of both signs."""
    if kind == "i32":
        return rng.integers(-3, 4, shape).astype(np.int32)
    x = rng.integers(-40, 40, shape).astype(np.float32)
    x[rng.random(shape) < 0.01] = np.nan if kind == "nan" else np.inf
    if kind == "zeros":
        x = np.where(rng.random(shape) < 0.5, -0.0, 0.0).astype(np.float32)
    return x


@pytest.mark.parametrize("kind", ["f32", "nan", "zeros", "i32"])
@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("fn", ["argmax", "argmin"])
def test_positions(fn: str, axis: int, kind: str, rng: np.random.Generator) -> None:
    shape = [3, 4, 5]
    shape[axis] = 1300
    x = positions(tuple(shape), kind, rng)
    arg = torch.from_numpy(x)
    func = prepared(stack.trace(lambda x: getattr(x, fn)(axis), arg))
    for parts in (0, 16):  # 1300 in parts of 82 and of fewer
        steps = f"stream{{min_axis=64,loops=blocks}},split_reductions{{parts={parts}}},fuse,blocks"
        made = Pipeline(steps).run(func, target=GPU).func
        assert not any(n.op == "argreduce" for n in made.nodes)
        assert all(n.op in ("kernel", "item", "reshape", "param") for n in made.nodes), str(made)
        got = np.asarray(made.interpret(x))
        np.testing.assert_array_equal(got, getattr(arg, fn)(axis).numpy())


@pytest.mark.parametrize("kind", ["f32", "nan", "zeros"])
@pytest.mark.parametrize(
    ("shape", "axis"), [((13, 129), 1), ((3, 700), 1), ((2, 4095), 1), ((2, 33, 129), 1)]
)
@pytest.mark.parametrize("fn", ["argmax", "argmin"])
def test_positions_in_ragged_rows(
    fn: str, shape: tuple[int, ...], axis: int, kind: str, rng: np.random.Generator
) -> None:
    arg = torch.from_numpy(positions(shape, kind, rng)).half()
    func = lowered(lambda x: getattr(x, fn)(axis), arg)
    assert "argreduce" not in str(func)
    got = np.asarray(func.interpret(arg.numpy()))
    np.testing.assert_array_equal(got, getattr(arg, fn)(axis).numpy())


def test_ragged_rows_that_are_no_streams() -> None:
    """Twins: rows that are computed, or that another reduction reads, stay with it."""
    x = torch.zeros(70, 129, dtype=torch.bfloat16)
    others = (lambda x: (x * 2 + 1).argmax(-1), lambda x: (x.argmax(-1), x.sum(-1)))
    for fn, count in ((lambda x: x.argmax(-1), 1), (lambda x: x.max(-1), 1), *zip(others, (0, 0))):
        func = prepared(stack.trace(fn, x))
        made = Pipeline("stream{min_axis=32769,loops=blocks}").run(func, target=GPU).func
        assert [n.op for n in made.nodes].count("stream") == count
    func = prepared(stack.trace(lambda x: x.argmax(-1), torch.zeros(7, 40_001, dtype=x.dtype)))
    made = Pipeline("stream{min_axis=32769,loops=blocks}").run(func, target=GPU).func
    assert any(n.op == "stream" for n in made.nodes)  # too long for a loop that is unrolled


def test_a_position_in_all_elements(rng: np.random.Generator) -> None:
    x = positions((70_001,), "nan", rng)
    func = prepared(stack.trace(lambda x: x.argmax(), torch.from_numpy(x)))
    made = Pipeline("stream{min_axis=32769,loops=blocks},split_reductions,fuse,blocks")
    result = made.run(func, target=GPU).func
    assert not any(n.op == "argreduce" for n in result.nodes)
    np.testing.assert_array_equal(np.asarray(result.interpret(x)), torch.from_numpy(x).argmax())


STAGES = "stream{{min_axis=64,loops=blocks}},split_reductions{{parts={}}},canonicalize,fuse,blocks"


def kernels(fn: Any, x: Tensor, parts: int = 0) -> Func:
    func = Pipeline(STAGES.format(parts)).run(prepared(stack.trace(fn, x)), target=GPU).func
    verify(func)
    return func


@pytest.mark.parametrize("kind", ["f32", "nan", "zeros", "i32", "bf16"])
@pytest.mark.parametrize(("axis", "size"), [(0, 1300), (1, 1300), (2, 1300), (0, 12), (2, 40)])
@pytest.mark.parametrize("fn", [torch.max, torch.min])
def test_a_value_and_its_position(
    fn: Any, axis: int, size: int, kind: str, rng: np.random.Generator
) -> None:
    shape = [3, 4, 5]
    shape[axis] = size
    x = torch.from_numpy(positions(tuple(shape), "nan" if kind == "bf16" else kind, rng))
    x = x.bfloat16() if kind == "bf16" else x
    for parts in (0, 16):
        made = kernels(lambda x: fn(x, axis), x, parts)
        values, places = made.interpret((x.float() if kind == "bf16" else x).numpy())
        want = fn(x, axis)
        np.testing.assert_array_equal(np.asarray(values), want.values.float().numpy())
        np.testing.assert_array_equal(np.asarray(places), want.indices.numpy())


@pytest.mark.parametrize(
    ("shape", "axis"),
    [
        ((1300, 4096), 0),
        ((12, 4096, 128), 0),
        ((99, 1300, 64), 1),
        ((999, 40), 1),
        ((999, 9000), 1),
    ],
)
def test_a_value_and_its_position_read_memory_once(shape: tuple[int, ...], axis: int) -> None:
    func = kernels(lambda x: torch.max(x, axis), torch.empty(shape, device="meta"))
    (x,) = func.params
    assert sum(x in n.args for n in func.nodes) == 1, str(func)


@pytest.mark.parametrize("size", [12, 1300])
def test_another_value_is_not_that_of_a_position(size: int) -> None:
    """Twins: the other extremum, another axis, another array."""
    x = torch.zeros(size, size)

    def others(x: Tensor) -> tuple[Tensor, ...]:
        return x.argmax(0), x.amin(0), x.amax(1), (x + 1).amax(0)

    func = (
        Pipeline("stream{min_axis=64,loops=blocks}")
        .run(prepared(stack.trace(others, x)), target=GPU)
        .func
    )
    assert sum(n.op == "reduce" for n in func.nodes) == 3
    assert not any(n.op == "item" for n in func.nodes)


def test_positions_of_short_columns_and_rows_stay() -> None:
    for axis, shape in ((1, (4, 16, 8)), (2, (4, 4, 30000))):
        func = prepared(stack.trace(lambda x, a=axis: x.argmax(a), torch.zeros(shape)))
        made = Pipeline("stream{min_axis=32769,loops=blocks}").run(func, target=GPU).func
        assert any(n.op == "argreduce" for n in made.nodes)


def test_streams_in_parts_coalesce_their_axes(rng: np.random.Generator) -> None:
    """The results of parts have an axis more than those of the blocks."""
    x = rng.standard_normal((6, 4, 2000)).astype(np.float32)
    func = prepared(stack.trace(lambda x: x.reshape(2, 3, 4, 2000).var(3), torch.from_numpy(x)))
    steps = "stream{min_axis=64,loops=blocks},split_reductions{parts=4},fuse,coalesce,blocks"
    made = Pipeline(steps).run(func, target=GPU).func
    verify(made)
    want = torch.from_numpy(x).double().reshape(2, 3, 4, 2000).var(3).numpy()
    np.testing.assert_allclose(np.asarray(made.interpret(x)), want, rtol=1e-5)


@pytest.mark.parametrize(("axis", "size"), [(1, 1 << 16), (0, 1 << 16)])
def test_a_variance_has_as_many_states_for_columns_as_for_rows(axis: int, size: int) -> None:
    shape = (64, size) if axis else (size, 64)
    func = prepared(stack.trace(lambda x: x.var(axis), torch.empty(shape, device="meta")))
    made = Pipeline("stream{min_axis=32769,loops=blocks}").run(func, target=GPU).func
    (stream,) = [n for n in made.nodes if n.op == "stream"]
    assert len(stream.blocks[0].results) == 3


@pytest.mark.parametrize("shape", [(8, 16), (16, 8, 4)])
def test_positions_have_32_bits_until_they_are_results(shape: tuple[int, ...]) -> None:
    func = prepared(stack.trace(lambda x: x.argmax(0), torch.empty(shape, device="meta")))
    (found,) = [n for n in func.nodes if n.op == "argreduce"]
    body = alone(found).blocks[0]
    assert [str(n.dtype) for n in body.all_nodes if n.op == "iota"] == ["i32"]
    assert str(body.results[0].dtype) == "i64"


def loop_of(fn: Any, rows: int) -> Node:
    """The loop of the first kernel, for columns of so many elements."""
    func = lowered(fn, torch.empty(1, rows, 4095, device="meta"))
    first = next(n for n in func.nodes if n.op == "kernel")
    (loop,) = (n for _, n in walk(first.blocks[0]) if n.attrs.get("kind") == "serial")
    return loop


@pytest.mark.parametrize("fn", [variance, lambda x: x.argmax(1)], ids=["variance", "argmax"])
def test_parts_with_masks_carry_no_state_twice(fn: Any) -> None:
    """With 65552 rows, an element of the last part may be after the last one of the column."""
    masked, whole = loop_of(fn, 65552), loop_of(fn, 65536)
    tests = [any(n.op == "lt" for n in loop.blocks[0].nodes) for loop in (masked, whole)]
    assert tests == [True, False]
    assert len(masked.blocks[0].results) == len(whole.blocks[0].results)


@pytest.mark.parametrize("kind", ["f32", "nan", "i32"])
def test_many_parts_of_positions_are_merged_by_one_kernel(
    kind: str, rng: np.random.Generator
) -> None:
    x = torch.from_numpy(positions((1300, 40), kind, rng))
    func = kernels(lambda x: x.argmax(0), x, 40)
    assert [n.op for n in func.nodes].count("kernel") == 2
    np.testing.assert_array_equal(np.asarray(func.interpret(x.numpy())), x.argmax(0).numpy())


def test_axes_beside_a_column_are_one(rng: np.random.Generator) -> None:
    x = torch.from_numpy(positions((70, 3, 33), "nan", rng))
    for fn in (lambda x: x.argmax(0), lambda x: x.max(0).indices):
        func = lowered(fn, x)
        (kernel,) = (n for n in func.nodes if n.op == "kernel")
        assert kernel.args[0].shape == (70, 99)
        np.testing.assert_array_equal(np.asarray(func.interpret(x.numpy())), x.argmax(0).numpy())


def tiles(fn: Any, shape: tuple[int, ...], dtype: Any = None) -> tuple[str, int]:
    """The first tile that the first kernel loads, and its warps."""
    func = lowered(fn, torch.empty(shape, device="meta", dtype=dtype))
    first = next(n for n in func.nodes if n.op == "kernel")
    found = next(n for _, n in walk(first.blocks[0]) if n.op == "load" and n.tensor.rank)
    return str(found.type), first.attrs["warps"]


@pytest.mark.parametrize(
    ("shape", "dtype", "tile"),
    [
        # tiles of 4 KiB, of fewer elements in short columns, with one size of columns
        ((1, 65536, 4096), torch.float32, ("f32<16x64>", 2)),
        ((1, 65536, 4096), torch.bfloat16, ("bf16<32x64>", 4)),
        ((512, 512, 512), torch.bfloat16, ("bf16<16x64>", 2)),
        # no 16-byte copies
        ((1, 65536, 4095), torch.bfloat16, ("bf16<32x64>", 4)),
        # few tiles, then short columns in registers if no copy prefetches them
        ((64, 255, 129), torch.float32, ("f32<256x32>", 8)),
        ((64, 256, 128), torch.float32, ("f32<16x64>", 2)),
        ((64, 129, 128), torch.float32, ("f32<16x64>", 2)),
        ((1024, 90, 128), torch.float32, ("f32<16x64>", 2)),
        ((64, 701, 129), torch.float32, ("f32<64x32>", 4)),
        # four rows are one aligned row
        ((64, 700, 129), torch.float32, ("f32<64x16>", 2)),
        # threads have whole columns
        ((1, 8, 65536), torch.float32, ("f32<8x128>", 1)),
        ((1, 16, 65536), torch.bfloat16, ("bf16<16x256>", 1)),
        ((1, 4, 65536), torch.float32, ("f32<4x256>", 2)),
        ((1, 8, 65535), torch.float32, ("f32<8x128>", 4)),
    ],
)
def test_tiles_of_columns(shape: tuple[int, ...], dtype: Any, tile: tuple[str, int]) -> None:
    assert tiles(variance, shape, dtype) == tile


def test_tiles_of_rows_that_are_read_several_at_a_time() -> None:
    shape, fn = (131_104, 4095), lambda x: x.var(0)
    assert tiles(fn, shape, torch.bfloat16) == ("bf16<64x32>", 4)
    assert tiles(fn, shape, torch.float32) == ("f32<64x16>", 2)


@pytest.mark.parametrize(
    ("shape", "dtype", "tile"),
    [
        # each element is loaded on its own: positions are found in a loop
        ((255, 64, 32895), torch.bfloat16, ("bf16<4x128>", 4)),
        ((255, 255, 129), torch.bfloat16, ("bf16<16x32>", 1)),
        # wider loads, and wider elements
        ((255, 64, 32896), torch.bfloat16, ("bf16<16x64>", 2)),
        ((255, 64, 32895), torch.float32, ("f32<64x128>", 8)),
        # each element is loaded on its own: a loop, with several short rows
        ((70000, 129), torch.bfloat16, ("bf16<8x16>", 1)),
        ((70000, 700), torch.bfloat16, ("bf16<2x64>", 1)),
        ((7000, 4095), torch.bfloat16, ("bf16<256>", 1)),
        ((7000, 16383), torch.bfloat16, ("bf16<1024>", 4)),
        # wider loads, and wider elements
        ((70000, 128), torch.bfloat16, ("bf16<16x128>", 1)),
        ((7000, 4096), torch.bfloat16, ("bf16<4096>", 8)),
        ((7000, 4095), torch.float32, ("f32<4096>", 8)),
    ],
)
def test_tiles_with_positions(shape: tuple[int, ...], dtype: Any, tile: tuple[str, int]) -> None:
    assert tiles(lambda x: x.argmax(1), shape, dtype) == tile


@pytest.mark.parametrize(
    ("shape", "dtype", "tile"),
    [
        ((1, 65536, 512), torch.bfloat16, ("bf16<4x512>", 1)),
        ((1, 65536, 512), torch.float32, ("f32<4x512>", 1)),
        ((1, 65536, 129), torch.bfloat16, ("bf16<8x256>", 1)),
        ((1, 65536, 4096), torch.bfloat16, ("bf16<4096>", 8)),
        # few rows: all processors get some
        ((1, 512, 512), torch.bfloat16, ("bf16<2x512>", 1)),
    ],
)
def test_tiles_of_rows(shape: tuple[int, ...], dtype: Any, tile: tuple[str, int]) -> None:
    assert tiles(lambda x: x.sum(2), shape, dtype) == tile


def test_masked_columns_divide_by_one_number_for_a_tile() -> None:
    for rows in (65552, 65536):
        divisors = [n.args[1] for n in loop_of(variance, rows).blocks[0].nodes if n.op == "div"]
        assert divisors
        assert all(n.op == "broadcast" or not n.tensor.rank for d in divisors for n in origins(d))


def origins(node: Node) -> list[Node]:
    """The operands of a maximum that are no constants; the node itself otherwise."""
    return [a for a in node.args if a.op != "constant"] if node.op == "max" else [node]
