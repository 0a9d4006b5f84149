"""The policy of rows on a CPU: index-set splitting, vector widths, staged values."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from cpu_steps import check_steps, lowered, masks, steps_of, widths
from executed import agrees, func_of

from stack.ir import Builder, Func, Node, param, tensor
from stack.ir.builder import constant
from stack.ir.node import walk
from stack.ir.types import I64
from stack.rewrite import Pipeline
from stack.run.compile import compile_func
from stack.target import load

CONCAT = """func @main(%x: f32[3, 64], %y: f32[3, 96]) -> (f32[3, 160]) at tensor {
  %z = concat(%x, %y) {axis=1} : f32[3, 160]
  return %z
}
"""
ROWS = """func @main(%x: f32[2, 9], %y: f32[3, 9]) -> (f32[5, 9]) at tensor {
  %z = concat(%x, %y) {axis=0} : f32[5, 9]
  return %z
}
"""
SOFTMAX = """func @main(%x: f32[5, 100]) -> (f32[5, 100]) at tensor {
  %e = exp(%x) : f32[5, 100]
  %s = reduce(%e) {axes=[1], kind="sum"} : f32[5]
  %t = broadcast(%s) {axes=[0]} : f32[5, 100]
  %y = div(%e, %t) : f32[5, 100]
  return %y
}
"""
STEPS = {
    CONCAT: "partition j 64; split j 32 tail=peel; vectorize j.1; bind i cores",
    ROWS: "specialize i; vectorize j; bind i cores",
    SOFTMAX: "stage e local; split r 32 tail=peel; vectorize r.1; rfactor r.0; bind i cores",
}


@pytest.mark.parametrize("text", STEPS, ids=["concat", "rows", "softmax"])
def test_steps_before_and_expected(text: str) -> None:
    check_steps(text, STEPS[text])


# ---- conditions


def joined(dtype: str, axis: int, sizes: Sequence[int], shape: tuple[int, ...]) -> Func:
    specs = [(dtype, *shape[:axis], size, *shape[axis:]) for size in sizes]
    return func_of(lambda b, *parts: b.concat(*parts, axis=axis), specs)


@pytest.mark.parametrize("sizes", [(96, 160), (100, 156), (1, 33, 2, 67)])
def test_parts_of_a_concatenation_have_no_mask(sizes: tuple[int, ...]) -> None:
    assert masks(lowered(joined("f32", 0, sizes, ()))) == 0


def test_parts_shorter_than_a_register_stay_one() -> None:
    few, more = (joined("f32", 1, (5, n), (3,)) for n in (7, 8))
    assert not any(step.startswith("partition") for step in steps_of(few))
    assert masks(lowered(few)) == 2
    assert steps_of(more)[0] == "partition j 5"
    assert masks(lowered(more)) == 0


def spaced(axis: int) -> Func:
    """With sevens before and between the elements along an axis."""
    ones = tuple(int(a == axis) for a in range(2))

    def build(b: Builder, x: Node) -> Node:
        return b.pad(x, constant(7, x.dtype), low=ones, high=(0, 0), interior=ones)

    return func_of(build, [("f32", 5, 40)])


@pytest.mark.parametrize("axis", [0, 1])
def test_conditions_that_alternate_stay_masks(axis: int, rng: np.random.Generator) -> None:
    func = spaced(axis)
    made = lowered(func)
    assert masks(made) > 0
    x = rng.normal(size=(5, 40)).astype(np.float32)
    np.testing.assert_array_equal(made.interpret(x), func.interpret(x))


def test_conditions_of_no_load_are_not_specialized() -> None:
    def build(b: Builder, x: Node) -> Node:
        places = b.iota(axis=0, type=x.tensor.with_dtype(I64))
        return b.select(b.lt(places, 20), b.exp(x), x)

    func = func_of(build, [("f32", 200)])
    assert not any(step.startswith(("partition", "specialize")) for step in steps_of(func))
    made = str(lowered(func))
    assert "select(" in made
    assert "limited" not in made


def numbers(b: Builder, x: Node) -> Node:
    """Along lanes all are the same: they are loaded as scalars, under conditions."""
    both = b.concat(x, b.neg(x), axis=0)
    return b.broadcast(both, axes=(0,), type=both.tensor.with_shape((10, 70)))


def test_a_number_for_each_row_has_no_mask() -> None:
    func = func_of(numbers, [("f32", 5)])
    assert steps_of(func)[0] == "specialize i"
    assert masks(lowered(func)) == 0


def padded(b: Builder, x: Node) -> Node:
    return b.pad(x, constant(7, x.dtype), low=(1, 2), high=(2, 1), interior=(0, 0))


def test_specialize_is_limited_by_the_values_of_all_copies(
    monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator
) -> None:
    func = func_of(padded, [("f32", 9, 75)])
    assert "specialize i" in steps_of(func)
    monkeypatch.setattr("stack.passes.steps.partition.MOST", 2)
    assert "specialize i" not in steps_of(func)
    made = lowered(func)
    assert masks(made) > 0
    x = rng.normal(size=(9, 75)).astype(np.float32)
    np.testing.assert_array_equal(made.interpret(x), func.interpret(x))


def seconds(parts: int) -> float:
    """Processor time for the kernel of a concatenation of so many parts; the best of two."""
    func = Pipeline("fuse,coalesce").run(joined("f32", 0, [160] * parts, ())).func
    found: list[float] = []
    for _ in range(2):
        start = time.process_time()
        Pipeline("tile,distribute").run(func, target=load("avx2"))
        found.append(time.process_time() - start)
    return min(found)


def test_time_to_make_a_kernel_grows_with_the_number_of_parts() -> None:
    """Three times as many take less than nine times as long."""
    assert seconds(48) < 9 * seconds(16)


JOINED: dict[str, tuple[int, tuple[int, ...], tuple[int, ...]]] = {
    "first axis": (0, (300, 41, 1, 0, 219), (65,)),
    "of whole vectors": (0, (256, 512), (64,)),
    "parts shorter than a vector": (0, (9000, 3, 7, 30, 9001), ()),
    "a length that no block divides": (0, (12289, 8192), ()),
    "last axis": (1, (96, 160), (7,)),
    "last axis, odd": (1, (1, 33, 2, 67), (5,)),
    "few lanes": (1, (3, 5), (40,)),
    "channels": (1, (5, 3), (2, 61, 61)),
}


def drawn(func: Func, rng: np.random.Generator) -> list[np.ndarray]:
    found: list[np.ndarray] = []
    for p in func.params:
        most = 2 if p.dtype.kind == "b" else 99
        found.append(rng.integers(0, most, p.tensor.shape).astype(p.dtype.numpy))
    return found


@pytest.mark.parametrize("dtype", ["f32", "bf16", "f64", "i8", "bool", "i64"])
@pytest.mark.parametrize("name", JOINED)
def test_concatenations(name: str, dtype: str, rng: np.random.Generator) -> None:
    pytest.importorskip("torch_mlir")
    func = joined(dtype, *JOINED[name])
    agrees(compile_func(func, "mlir", options={"cache": False}), func, drawn(func, rng), 0)


@pytest.mark.parametrize("name", JOINED)
def test_concatenations_at_the_loop_level(name: str, rng: np.random.Generator) -> None:
    func = joined("f32", *JOINED[name])
    args = drawn(func, rng)
    np.testing.assert_array_equal(lowered(func).interpret(*args), func.interpret(*args))


def merged(b: Builder, x: Node) -> Node:
    """Four pixels as one, as Swin merges patches."""
    rows, columns, channels = map(int, x.shape)  # pyright: ignore[reportArgumentType]
    return b.concat(
        *(
            b.slice(x, start=(i, j, 0), limit=(rows, columns, channels), step=(2, 2, 1))
            for j in (0, 1)
            for i in (0, 1)
        ),
        axis=2,
    )


def rotated_halves(b: Builder, x: Node) -> Node:
    """As rotary embeddings do: the second half, negative, before the first; then scaled."""
    rows, width = map(int, x.shape)  # pyright: ignore[reportArgumentType]
    first = b.slice(x, start=(0, 0), limit=(rows, width // 2), step=(1, 1))
    second = b.slice(x, start=(0, width // 2), limit=(rows, width), step=(1, 1))
    return b.mul(b.concat(b.neg(second), first, axis=1), x)


def summed(b: Builder, x: Node) -> Node:
    """A reduction along the lanes has conditions too, and one over rows has them in a loop."""
    both = b.concat(x, b.exp(x), axis=1)
    return b.add(
        b.broadcast(b.reduce(both, kind="sum", axes=(0,)), axes=(1,), type=both.type),
        b.broadcast(b.reduce(both, kind="max", axes=(1,)), axes=(0,), type=both.type),
    )


def around(b: Builder, x: Node) -> Node:
    """More rows on both sides of transposed ones, then more lanes."""
    y = b.transpose(x, perm=(1, 0, 2))
    lanes = x.shape[2]
    first = b.slice(y, start=(0, 1, 0), limit=(3, 2, lanes), step=(1, 1, 1))
    z = b.concat(first, y, b.exp(first), axis=1)
    return b.concat(b.reverse(z, axes=(2,)), z, axis=2)


PROGRAMS: dict[str, tuple[Callable[[Builder, Node], Node], tuple[int, ...]]] = {
    "merged patches": (merged, (6, 10, 48)),
    "rotated halves": (rotated_halves, (9, 66)),
    "padded": (padded, (9, 75)),
    "padded, long": (padded, (3, 20000)),
    "summed": (summed, (9, 75)),
    "rows around rows": (around, (4, 3, 70)),
    "a number for each row": (numbers, (5,)),
}


@pytest.mark.every(2)
@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_with_conditions(name: str, rng: np.random.Generator) -> None:
    pytest.importorskip("torch_mlir")
    build, shape = PROGRAMS[name]
    func = func_of(build, [("f32", *shape)])
    x = rng.normal(size=shape).astype(np.float32)
    x.reshape(-1)[:5] = np.inf, -np.inf, np.nan, -0.0, 0.0
    near = 1e-6 if name in ("summed", "rows around rows") else 0
    if near:
        x = np.nan_to_num(x, posinf=1, neginf=1)
    agrees(compile_func(func, "mlir", options={"cache": False}), func, [x], near)
    np.testing.assert_allclose(lowered(func).interpret(x), func.interpret(x), rtol=near)


# ---- slices of one value in another order


def part(b: Builder, x: Node, axis: int, start: int, limit: int) -> Node:
    shape = tuple(map(int, x.shape))  # pyright: ignore[reportArgumentType]
    first, last = [0] * len(shape), list(shape)
    first[axis], last[axis] = start, limit
    return b.slice(x, start=tuple(first), limit=tuple(last), step=(1,) * len(shape))


def moved(axis: int, pieces: list[tuple[int, int]], twice: bool = False) -> Func:
    """exp of a value that is put together from pieces of another."""
    b = Builder()
    x = param("x", tensor("f32", 4, 6, 16))
    p = param("p0", x.type)
    value = b.exp(p)
    for at in (axis, 1) if twice else (axis,):
        cut = pieces if at == axis else [(2, 6), (0, 2)]
        value = b.concat(*(part(b, value, at, *piece) for piece in cut), axis=at)
    group = Builder().fusion(x, kind="loop", name="moved", blocks=(b.block([p], [value]),))
    return Builder().func("main", [x], [group])


@pytest.mark.parametrize(
    ("axis", "pieces", "twice", "steps"),
    [
        (0, [(1, 4), (0, 1)], False, "specialize i at=j; vectorize k"),
        (1, [(5, 6), (0, 5)], False, "specialize j; vectorize k"),
        (0, [(3, 4), (0, 3)], True, "specialize i at=j; specialize j; vectorize k"),
        (0, [(0, 1), (1, 4)], False, "specialize i at=j; vectorize k"),  # in order
        (0, [(2, 4), (0, 2), (1, 3)], False, "specialize i at=j; vectorize k"),
        (1, [(3, 6), (0, 2)], False, "specialize j; vectorize k"),  # a gap
        (1, [(3, 6), (1, 4)], False, "specialize j; vectorize k"),
        (2, [(5, 16), (0, 5)], False, "partition k 11; "),
    ],
)
def test_each_piece_has_code_of_its_own(
    axis: int, pieces: list[tuple[int, int]], twice: bool, steps: str, rng: np.random.Generator
) -> None:
    func = moved(axis, pieces, twice)
    assert "; ".join(steps_of(func)).startswith(steps)
    made = lowered(func, passes="canonicalize")
    assert masks(made) == 0
    assert str(made).count("exp(") == len(pieces) * (2 if twice else 1)
    x = rng.normal(size=(4, 6, 16)).astype(np.float32)
    np.testing.assert_allclose(made.interpret(x), func.interpret(x), rtol=1e-6)


# ---- vectors


def columns(lanes: int, dtype: str = "f32") -> Func:
    """Sums of 7 rows, and a row: a loop carries the sums."""

    def build(b: Builder, x: Node, y: Node) -> Node:
        return b.add(b.reduce(x, kind="sum", axes=(0,)), y)

    return func_of(build, [(dtype, 7, lanes), (dtype, lanes)])


def whole(lanes: int) -> Func:
    """The sum of all: lanes are added once, after a loop that carries them."""

    def build(b: Builder, x: Node, y: Node) -> Node:
        return b.reduce(b.add(b.reduce(x, kind="sum", axes=(0,)), y), kind="sum", axes=(0,))

    return func_of(build, [("f32", 7, lanes), ("f32", lanes)])


def carried(func: Func) -> set[int]:
    """Lanes of what loops carry."""
    held = [p for block, _ in walk(func.body) for p in block.params]
    return {int(p.shape[0]) for p in held if getattr(p.type, "space", "") == "tile"}


@pytest.mark.parametrize("func", [columns(60), whole(60), columns(100)], ids=["60", "all", "100"])
def test_loops_carry_a_power_of_two_or_less_than_a_register(func: Func) -> None:
    found = carried(lowered(func))
    assert found
    assert all(n < 8 or n & (n - 1) == 0 for n in found)


@pytest.mark.parametrize("lanes", [60, 100, 200])
def test_what_is_left_does_not_narrow_the_other_vectors(lanes: int) -> None:
    """Each vector makes a pass over all rows, so a wide vector makes fewer passes."""
    assert max(carried(lowered(columns(lanes)))) == 32


def test_lanes_that_no_loop_carries_stay_together() -> None:
    func = func_of(lambda b, x: b.mul(x, x), [("f32", 7, 60)])
    assert widths(lowered(func, passes="fuse")) == {60}


@pytest.mark.parametrize(("sizes", "expected"), [((5, 7), {12}), ((20, 80), {20, 32, 16})])
def test_places_of_loads_do_not_count_as_carried(
    sizes: tuple[int, int], expected: set[int]
) -> None:
    assert widths(lowered(joined("f32", 1, sizes, (3,)))) == expected


@pytest.mark.parametrize("lanes", [64, 32, 15, 7])
def test_a_power_of_two_and_less_than_a_register_stay_whole(lanes: int) -> None:
    assert widths(lowered(columns(lanes), "avx512")) == {lanes}


def test_a_register_holds_half_as_many_of_f64() -> None:
    assert widths(lowered(columns(15, "f64"), "avx512")) == {8, 7}
    assert widths(lowered(columns(15), "avx512")) == {15}


@pytest.mark.parametrize("make", [columns, whole])
def test_sums_of_columns(make: Callable[[int], Func], rng: np.random.Generator) -> None:
    x, y = rng.normal(size=(7, 60)).astype(np.float32), rng.normal(size=60).astype(np.float32)
    sums = x.astype(np.float64).sum(0) + y
    wanted = sums if make is columns else sums.sum()
    found = lowered(make(60)).interpret(x, y)
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)


# ---- values that two loops along the lanes need


def centred(shape: tuple[int, int], is_column: bool = False, op: str = "neg") -> Func:
    """Rows, or columns, without their sums."""

    def build(b: Builder, x: Node) -> Node:
        v = b.op(op, [b.transpose(x, perm=(1, 0)) if is_column else x], {})
        total = b.reduce(v, kind="sum", axes=(1,))
        return b.sub(v, b.broadcast(total, axes=(0,), type=v.type))

    return func_of(build, [("f32", *shape)])


def kept(func: Func) -> list[str]:
    return [step for step in steps_of(func) if step.startswith("stage ")]


def test_a_column_is_loaded_once() -> None:
    assert kept(centred((70, 3), is_column=True)) == ["stage transpose local"]
    assert not kept(centred((3, 70)))


def test_what_takes_long_is_computed_once() -> None:
    assert kept(centred((3, 70), op="exp")) == ["stage exp local"]
    assert str(lowered(centred((3, 64), op="exp"))).count("exp(") == 1


def test_a_vector_that_holds_the_row_needs_no_memory() -> None:
    for func in (centred((63, 3), is_column=True), centred((3, 63), op="exp")):
        assert not kept(func)
        made = str(lowered(func))
        assert made.count("load(") == 1
        assert "alloc(" not in made


def test_kept_values_fit_a_share_of_the_cache() -> None:
    """A sixteenth of 512 KiB, on AVX2."""
    assert kept(centred((3, 8192), op="exp"))
    assert not kept(centred((3, 8193), op="exp"))


@pytest.mark.parametrize("shape", [(3, 5), (3, 70), (3, 129)])
@pytest.mark.parametrize("is_column", [False, True])
@pytest.mark.parametrize("op", ["neg", "exp"])
def test_centred_rows(
    shape: tuple[int, int], is_column: bool, op: str, rng: np.random.Generator
) -> None:
    x = rng.normal(size=shape[::-1] if is_column else shape).astype(np.float32)
    func = centred(x.shape, is_column, op)
    np.testing.assert_allclose(lowered(func).interpret(x), func.interpret(x), rtol=1e-4, atol=1e-4)
