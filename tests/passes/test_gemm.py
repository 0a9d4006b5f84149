"""Dots through tile and distribute: both levels mean what einsum in f64 says."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from kernel_cases import program, tile_group
from product_cases import causal, gate, residual, row_scale, two_results

from stack.ir import Builder, Func, Node, param, parse, tensor, verify
from stack.ir.axes import parse_rule
from stack.ir.data import round_bf16
from stack.ir.space import einsum_text
from stack.passes.cpu_products.gemm import depth_tile, pick_lanes, pick_rows
from stack.passes.cpu_products.panels import Panels
from stack.passes.distribute import distribute_kernel
from stack.passes.tile import CannotTile, Tile
from stack.passes.tiling.contraction import roles_of, split_dot
from stack.passes.tiling.single_ops import alone
from stack.rewrite.log import Log
from stack.target import Cpu, Mma, as_cpu, load

Shape = tuple[int, ...]
CPU = as_cpu(None)
AVX512, AMX, AVX2 = (as_cpu(load(name)) for name in ("avx512", "amx", "avx2"))

SHAPES: list[tuple[str, Shape, Shape]] = [
    ("m k, k n -> m n", (8, 32), (32, 128)),
    ("m k, k n -> m n", (7, 13), (13, 17)),
    ("m k, n k -> m n", (9, 37), (71, 37)),
    ("m k, n k -> m n", (67, 3), (100, 3)),
    ("k m, k n -> m n", (40, 9), (40, 64)),
    ("k m, n k -> m n", (31, 53), (47, 31)),
    ("m k, k n -> n m", (32, 7), (7, 64)),
    ("m k, k n -> m n", (1, 32), (32, 130)),
    ("m k, n k -> m n", (1, 33), (20, 33)),
    ("m k, k n -> m n", (50, 1), (1, 64)),
    ("k, k n -> n", (32,), (32, 64)),
    ("n k, k -> n", (40, 50), (50,)),
    ("m k, k n -> m n", (5, 4), (4, 16)),
    ("m k, k n -> m n", (41, 5), (5, 64)),
    ("b s k, k n -> b s n", (2, 5, 3), (3, 16)),
    ("b s k, n k -> b s n", (3, 41, 19), (80, 19)),
    ("b s k, h d k -> b h s d", (2, 9, 24), (3, 16, 24)),
    ("b s h d, b t h d -> b h s t", (2, 20, 3, 16), (2, 33, 3, 16)),
    ("b h s t, b t h d -> b s h d", (2, 3, 20, 33), (2, 33, 3, 16)),
    ("b g r s d, b g t d -> b g r s t", (2, 2, 3, 9, 8), (2, 2, 21, 8)),
    ("b h s d, h d n -> b s n", (2, 3, 9, 16), (3, 16, 70)),
    ("b s h d, n h d -> b s n", (2, 40, 3, 20), (70, 3, 20)),
    ("m k, k n -> m n", (8, 4096), (4096, 64)),
    ("m k, n k -> m n", (130, 4096), (100, 4096)),
    ("b m k, k n -> b m n", (2, 70, 4096), (4096, 64)),
]


def dot_of(rule: str, first: Shape, second: Shape, dtype: str = "f32") -> Node:
    operands = [param("x0", tensor(dtype, *first)), param("x1", tensor(dtype, *second))]
    return Builder().dot(*operands, rule=rule)


def expected(rule: str, *arrays: np.ndarray) -> np.ndarray:
    return np.einsum(einsum_text(parse_rule(rule)), *[a.astype(np.float64) for a in arrays])


def levels(group: Node) -> list[Func]:
    """The program with the group's kernel at both levels, checked."""
    tiled = tile_group(group)
    found = [program(tiled), program(distribute_kernel(tiled))]
    for func in found:
        verify(func)
        assert parse(str(func)) is func
    return found


@pytest.mark.parametrize(("rule", "first", "second"), SHAPES)
def test_levels_agree_with_einsum(
    rule: str, first: Shape, second: Shape, rng: np.random.Generator
) -> None:
    arrays = [rng.normal(size=s).astype(np.float32) for s in (first, second)]
    want = expected(rule, *arrays)
    for func in levels(alone(dot_of(rule, first, second))):
        np.testing.assert_allclose(func.interpret(*arrays), want, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("dtype", ["f64", "bf16", "f16"])
@pytest.mark.parametrize("rule", ["m k, k n -> m n", "m k, n k -> m n"])
def test_other_floats(dtype: str, rule: str, rng: np.random.Generator) -> None:
    shapes = [(19, 40), (40, 70)] if rule == "m k, k n -> m n" else [(19, 40), (70, 40)]
    kind = {"f64": np.float64, "bf16": np.float32, "f16": np.float16}[dtype]
    arrays = [rng.normal(size=s).astype(kind) for s in shapes]
    if dtype == "bf16":
        arrays = [round_bf16(a) for a in arrays]
    want = expected(rule, *arrays)
    tolerance = 1e-12 if dtype == "f64" else 2e-2
    for func in levels(alone(dot_of(rule, *shapes, dtype))):
        found = func.interpret(*arrays).astype(np.float64)
        np.testing.assert_allclose(found, want, rtol=tolerance, atol=tolerance)


def gelu_bias(b: Builder, x: Node, w: Node, bias: Node) -> Node:
    y = b.dot(x, w, rule="m k, n k -> m n")
    y = b.add(y, b.broadcast(bias, axes=(1,), type=y.type))
    cube = b.mul(b.mul(y, y), y)
    inner = b.mul(b.add(y, b.mul(cube, 0.044715)), 0.7978845608)
    return b.mul(b.mul(y, 0.5), b.add(b.tanh(inner), 1.0))


EPILOGUES: list[tuple[Callable[..., Node | tuple[Node, ...]], list[Shape]]] = [
    (gelu_bias, [(9, 20), (100, 20), (100,)]),
    (gelu_bias, [(70, 3000), (64, 3000), (64,)]),
    (gelu_bias, [(1, 33), (20, 33), (20,)]),
    (residual, [(9, 20), (20, 48), (9, 48)]),
    (residual, [(1, 20), (20, 64), (1, 64)]),
    (gate, [(13, 20), (33, 20), (13, 33)]),
    (row_scale, [(11, 20), (20, 50), (11,)]),
    (causal, [(2, 21, 8), (2, 21, 8)]),
    (two_results, [(9, 20), (20, 48)]),
]


def gemm_group(
    build: Callable[..., Node | tuple[Node, ...]], shapes: list[Shape], dtype: str = "f32"
) -> Node:
    b = Builder()
    params = [param(f"p{i}", tensor(dtype, *s)) for i, s in enumerate(shapes)]
    made = build(b, *params)
    results = made if isinstance(made, tuple) else (made,)
    outside = [param(f"x{i}", tensor(dtype, *s)) for i, s in enumerate(shapes)]
    block = b.block(params, results)
    return Builder().fusion(*outside, kind="gemm", name=build.__name__, blocks=(block,))


@pytest.mark.parametrize(("build", "shapes"), EPILOGUES)
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_epilogues(
    build: Callable[..., Node | tuple[Node, ...]],
    shapes: list[Shape],
    dtype: str,
    rng: np.random.Generator,
) -> None:
    group = gemm_group(build, shapes, dtype)
    arrays = [(rng.normal(size=s) / np.sqrt(s[-1])).astype(np.float32) for s in shapes]
    if dtype == "bf16":
        arrays = [round_bf16(a) for a in arrays]
    tolerance = 1e-4 if dtype == "f32" else 3e-2
    want = program(group).interpret(*arrays)
    for func in levels(group):
        found = func.interpret(*arrays)
        wants = want if isinstance(want, tuple) else (want,)
        for w, f in zip(wants, found if isinstance(found, tuple) else (found,), strict=True):
            np.testing.assert_allclose(f, w, rtol=tolerance, atol=tolerance)


def test_inf_and_nan_reach_what_they_touch_and_nothing_else(rng: np.random.Generator) -> None:
    x = rng.normal(size=(9, 20)).astype(np.float32)
    w = rng.normal(size=(70, 20)).astype(np.float32)
    x[3, 5], x[8, 0], w[69, 2] = np.inf, np.nan, -np.inf
    with np.errstate(all="ignore"):
        want = expected("m k, n k -> m n", x, w)
    for func in levels(alone(dot_of("m k, n k -> m n", x.shape, w.shape))):
        np.testing.assert_allclose(func.interpret(x, w), want, rtol=1e-4, atol=1e-4)


def test_a_long_axis_is_cut_and_the_micro_kernel_stays_one_op() -> None:
    for rows in (64, 640):
        kernel = tile_group(alone(dot_of("m k, n k -> m n", (rows, 3072), (128, 3072))))
        text = str(program(distribute_kernel(kernel)))
        assert text.count("= dot(") == 1
        assert "f32<1536x64>" in text  # the largest part whose panel fits beside what is read
        assert text.count("transpose(") == 1


def test_equal_dots_are_one_kernel_and_few_rows_are_not_packed() -> None:
    once = distribute_kernel(tile_group(alone(dot_of("m k, k n -> m n", (4, 64), (64, 128)))))
    again = distribute_kernel(tile_group(alone(dot_of("m k, k n -> m n", (4, 64), (64, 128)))))
    assert once.blocks[0] is again.blocks[0]
    assert "panel" not in str(program(once))


def integers_of(rule: str, first: Shape, second: Shape) -> Node:
    operands = [param("x0", tensor("i8", *first)), param("x1", tensor("i8", *second))]
    made = expected(rule, np.empty(first), np.empty(second)).shape
    return Builder().dot(*operands, rule=rule, type=tensor("i32", *made))


# all rows in tiles of six, a last one that starts early, blocks of the depth, several axes
RAISED: list[tuple[str, Shape, Shape]] = [
    ("m k, k n -> m n", (12, 64), (64, 64)),
    ("m k, n k -> m n", (20, 36), (71, 36)),
    ("m k, n k -> m n", (20, 12288), (64, 12288)),
    ("b s h d, h d n -> b s n", (2, 20, 3, 16), (3, 16, 70)),
]


@pytest.mark.parametrize(("rule", "first", "second"), RAISED)
def test_what_raised_rows_add_is_made_once_for_a_panel(
    rule: str, first: Shape, second: Shape, rng: np.random.Generator
) -> None:
    arrays = [rng.integers(-128, 128, size=s).astype(np.int8) for s in (first, second)]
    arrays[0].reshape(-1)[:2] = -128, 127
    want = np.einsum(einsum_text(parse_rule(rule)), *(a.astype(np.int32) for a in arrays))
    kernel = tile_group(alone(integers_of(rule, first, second)), AVX512)
    func = program(distribute_kernel(kernel))
    verify(func)
    assert parse(str(func)) is func
    np.testing.assert_array_equal(func.interpret(*arrays), want)
    assert str(func).count("= dot(") == 2 and "zeros" in str(func)


@pytest.mark.parametrize("rows", [1, 4, 5])
def test_few_rows_are_raised_where_they_are_multiplied(rows: int) -> None:
    """A row more in registers: the panel is not read twice."""
    kernel = tile_group(alone(integers_of("m k, k n -> m n", (rows, 64), (64, 64))), AVX512)
    text = str(program(distribute_kernel(kernel)))
    assert text.count("= dot(") == 1 and "zeros" not in text


@pytest.mark.parametrize("cpu", [AMX, AVX2], ids=["amx", "avx2"])
def test_what_multiplies_signed_numbers_raises_none(cpu: Cpu) -> None:
    kernel = tile_group(alone(integers_of("m k, k n -> m n", (64, 64), (64, 64))), cpu)
    assert "zeros" not in str(program(distribute_kernel(kernel)))


@pytest.mark.parametrize(
    ("rule", "first", "second", "ahead"),
    [
        ("m k, n k -> m n", (64, 3072), (128, 3072), 6),
        ("b s k, k n -> b s n", (2, 512, 768), (768, 128), 6),
        ("m k, k n -> m n", (50, 32), (32, 128), 0),  # they are there since the last panel
        ("m k, k n -> m n", (5, 32), (32, 128), 0),  # no tile follows
        ("b h s d, h d n -> b s n", (5, 3, 5, 16), (3, 16, 128), 0),  # nor along the rows
        ("m k, k n -> m n", (50, 32), (32, 64), 0),  # nothing is packed
    ],
)
def test_rows_that_follow_are_fetched_ahead(
    rule: str, first: Shape, second: Shape, ahead: int
) -> None:
    text = str(program(distribute_kernel(tile_group(alone(dot_of(rule, first, second))))))
    assert [f"ahead={ahead}" in text, "ahead" in text] == [ahead > 0] * 2


@pytest.mark.parametrize(
    ("rule", "first", "second", "why"),
    [
        ("m, n -> m n", (8,), (16,), "nothing is contracted"),
        ("b m, b m -> m b", (8, 16), (8, 16), "batch axis"),
        ("m n k, n k -> m n", (4, 8, 16), (8, 16), "batch axis"),
        ("m j k, k n -> m n", (8, 2, 8), (8, 16), "summed in one operand only"),
        ("m k, k n -> m n", (2, 100003), (100003, 64), "equal size"),
        ("m k, k n -> m n", (0, 4), (4, 5), "empty"),
        ("m k, k n -> m n", (3, 0), (0, 5), "empty"),
        ("m k, k n -> m n", (3, 4), (4, 0), "empty"),
    ],
)
def test_what_has_no_schedule_says_why(rule: str, first: Shape, second: Shape, why: str) -> None:
    with pytest.raises(CannotTile, match=why):
        tile_group(alone(dot_of(rule, first, second)))


def test_products_by_lane_are_a_cpus() -> None:
    dot = dot_of("m k n, k n -> m n", (4, 8, 16), (8, 16))
    assert roles_of(dot, by_lane=True).is_by_lane
    with pytest.raises(CannotTile, match="batch axis"):
        roles_of(dot)


def test_the_pass_leaves_bf16_to_a_library_but_not_its_epilogue(rng: np.random.Generator) -> None:
    func = program(gemm_group(gelu_bias, [(9, 21), (100, 21), (100,)], "bf16"))
    log = Log()
    tiled = Tile().run(func, log)
    assert [n.op for n in tiled.nodes] == ["dot", "kernel"]
    assert any("libraries have instructions" in note.text for note in log.notes)
    shapes = [(9, 21), (100, 21), (100,)]
    arrays = [round_bf16(rng.normal(size=s).astype(np.float32)) for s in shapes]
    want = func.interpret(*arrays)
    np.testing.assert_allclose(tiled.interpret(*arrays), want, rtol=3e-2, atol=3e-2)


def test_a_dot_that_is_returned_cannot_leave_its_group() -> None:
    with pytest.raises(CannotTile, match="has a prologue"):
        split_dot(gemm_group(two_results, [(9, 20), (20, 48)]))


def test_sizes_of_tiles() -> None:
    f32 = tensor("f32").dtype
    assert [pick_lanes(n, f32, CPU, 64) for n in (768, 64, 48, 100, 33, 16)] == [
        64,
        64,
        16,
        64,
        16,
        16,
    ]
    assert [pick_lanes(n, f32, CPU, 64) for n in (96, 288, 192)] == [32, 32, 64]
    assert all(pick_lanes(n, f32, CPU, 64).bit_count() == 1 for n in range(1, 300))
    assert [pick_lanes(n, f32, CPU, 64) for n in (15, 8, 5, 2, 1)] == [8, 8, 4, 2, 1]
    assert [pick_rows(m, 64, f32, CPU) for m in (1, 3, 4, 5, 128, 127)] == [1, 3, 4, 5, 6, 6]


def test_rows_that_tiles_divide_are_worth_narrow_ones() -> None:
    """Rows of pictures: tiles of six would compute 2 of 28 again, 4 of 14 and of 56."""
    f32 = tensor("f32").dtype
    rows = (7, 14, 28, 56, 112, 60, 512)
    lanes = [pick_lanes(64, f32, CPU, m) for m in rows]
    assert lanes == [32, 32, 64, 64, 64, 64, 64]
    picked = [pick_rows(m, n, f32, CPU) for m, n in zip(rows, lanes, strict=True)]
    assert picked == [7, 7, 4, 4, 6, 6, 6]


def test_rows_of_a_tile_fit_where_registers_are_few() -> None:
    """Seven rows are two tiles of four, not of six, on a CPU that holds six."""
    f32 = tensor("f32").dtype
    assert [pick_rows(m, 16, f32, AVX2) for m in (6, 7, 14)] == [6, 4, 5]


def test_the_longest_axis_is_cut_where_a_panel_does_not_fit() -> None:
    """With an instruction the first one of the rows: its depth divides only the last one."""

    def panels(k: int, c: int, mma: Mma | None = None) -> tuple[str, int | None]:
        dot = dot_of("m k c, c k n -> m n", (64, k, c), (c, k, 64))
        made = Panels(dot, roles_of(dot), 6, 16, mma, AVX2)
        return made.cut, made.block

    assert panels(3, 64) == ("c", 0)
    assert panels(3, 2048) == ("c", 1024)
    assert panels(4096, 2)[0] == "k"
    (mma, *_) = AVX512.mmas(("bf16", "bf16", "f32"))
    assert panels(3, 2048, mma)[0] == "k"


def test_tiles_along_the_depth_do_no_row_twice() -> None:
    """Sixteen rows are four tiles of four, not three of six."""

    def rows(height: int) -> int:
        dot = dot_of("m k, n k -> m n", (height, 64), (32, 64))
        return depth_tile(roles_of(dot, by_lane=True), CPU)[0]

    heights = (1, 2, 5, 6, 7, 8, 9, 12, 15, 16)
    assert [rows(m) for m in heights] == [1, 2, 5, 6, 4, 4, 5, 6, 5, 4]
