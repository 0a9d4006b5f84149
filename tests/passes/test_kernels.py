"""Groups through tile and distribute: both levels keep the meaning, and print losslessly."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from kernel_cases import (
    CASES,
    Spec,
    group_of,
    pointwise,
    program,
    random_array,
    softmax,
    tile_group,
)

from stack.errors import VerifyError
from stack.ir import Block, Builder, Node, param, parse, tensor, verify
from stack.ir.data import round_bf16
from stack.passes.blocks import Blocks
from stack.passes.distribute import Distribute, distribute_kernel
from stack.passes.tile import CannotTile
from stack.passes.tiling.single_ops import alone
from stack.rewrite.log import Log
from stack.target import load


@pytest.mark.every(2)
@pytest.mark.parametrize(("build", "specs"), CASES, ids=lambda c: getattr(c, "__name__", None))
def test_levels_agree(
    build: Callable[..., Node | tuple[Node, ...]], specs: list[Spec], rng: np.random.Generator
) -> None:
    group = group_of(build, specs)
    arrays = [random_array(s, rng) for s in specs]
    expected = program(group).interpret(*arrays)
    tolerance = 2e-2 if specs[0][0] in ("bf16", "f16") else 1e-5
    tiled = [tile_group(group, load(name)) for name in ("avx512", "generic")]
    for kernel in (*tiled, *map(distribute_kernel, tiled)):
        func = program(kernel)
        verify(func)
        assert parse(str(func)) is func
        found = func.interpret(*arrays)
        pairs = zip(
            expected if isinstance(expected, tuple) else (expected,),
            found if isinstance(found, tuple) else (found,),
            strict=True,
        )
        for want, got in pairs:
            assert want.shape == got.shape
            np.testing.assert_allclose(
                got.astype(np.float64), want.astype(np.float64), rtol=tolerance, atol=tolerance
            )


def test_softmax_is_three_sweeps_and_keeps_exp() -> None:
    group = group_of(softmax, [("f32", 3, 5, 256), ("f32", 5, 256)])
    text = str(program(distribute_kernel(tile_group(group))))
    assert text.count('kind="parallel"') == 2
    assert text.count('kind="serial"') == 3
    assert text.count("= exp(") == 1
    assert text.count("alloc()") == 1


@pytest.mark.parametrize("kind", ["max", "min"])
@pytest.mark.parametrize("axis", [0, 1])
def test_argreduce_takes_the_first_and_nan_wins(kind: str, axis: int) -> None:
    values = np.array([[1, 3, 3, 0], [np.nan, 2, np.nan, 5], [7, 7, 1, 1]], dtype=np.float32)
    x = param("x", tensor("f32", 3, 4))
    shape = (4,) if axis == 0 else (3,)
    node = Builder().argreduce(x, kind=kind, axis=axis, type=tensor("i32", *shape))
    expected = program(node).interpret(values)
    tiled = tile_group(alone(node))
    for kernel in (tiled, distribute_kernel(tiled)):
        np.testing.assert_array_equal(program(kernel).interpret(values), expected)


def test_kernels_of_a_gpu_are_refused_with_their_line() -> None:
    b = Builder()
    x, p = param("x", tensor("f32", 4, 30)), param("p0", tensor("f32", 4, 30))
    block = b.block([p], [b.exp(p)])
    body = Block(block.params, block.results, block.names, {block.results[0]: ("model.py:3",)})
    group = Builder().fusion(x, kind="loop", name="grown", blocks=(body,))
    masked = Blocks().run(program(group), Log())
    verify(masked)
    with pytest.raises(VerifyError, match="for a GPU") as error:
        Distribute().run(masked, Log())
    assert error.value.node.startswith("%kernel = kernel(") and error.value.source


def test_empty_arrays_are_refused_by_name() -> None:
    with pytest.raises(CannotTile, match="empty"):
        tile_group(group_of(pointwise, [("f32", 0, 3)]))


def test_a_widened_16_bit_value_is_the_rounded_one(rng: np.random.Generator) -> None:
    """Rounded to bf16 its error is that of memory; exact where nothing was computed."""
    b = Builder()
    x, y = param("x", tensor("bf16", 6, 40)), param("y", tensor("bf16", 6, 40))
    total = b.add(x, y)
    wide = b.cast(total, type=tensor("f32", 6, 40))
    attrs = {"kind": "loop", "name": "both"}
    group = b.op(
        "fusion", (x, y), attrs, (b.block([x, y], [total, b.cast(x, type=wide.type), wide]),)
    )
    arrays = [round_bf16(rng.normal(size=(6, 40)).astype(np.float32)) for _ in range(2)]
    assert not np.array_equal(round_bf16(arrays[0] + arrays[1]), arrays[0] + arrays[1])
    for kernel in (tile_group(group), distribute_kernel(tile_group(group))):
        func = b.func("main", [x, y], [b.item(kernel, index=i) for i in range(3)])
        stored, same, widened = func.interpret(*arrays)
        np.testing.assert_array_equal(widened, stored.astype(np.float32))
        np.testing.assert_array_equal(same, arrays[0])
    assert str(func).count("= cast(") == 4  # x and y in, the sum down and up again


@pytest.mark.parametrize("count", [1, 2])
def test_rows_spread_over_another_axis_are_refused(count: int) -> None:
    """Each row would need the reduction of others, along the lanes and inside of its loop."""

    def crossed(b: Builder, *x: Node) -> tuple[Node, ...]:
        least = b.reduce(x[0], kind="min", axes=(0, 2))
        return least, b.mul(x[-1], b.broadcast(least, axes=(0,), type=x[0].type))

    with pytest.raises(CannotTile, match="in every iteration of the loop along j"):
        tile_group(group_of(crossed, [("f32", 4, 4, 64)] * count))
