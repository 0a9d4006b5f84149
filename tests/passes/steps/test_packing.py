"""Packed panels of products: `accumulate`, `pack`, `prefetch`, `compensate`, and random lists."""

from __future__ import annotations

import random
import re

import numpy as np
import pytest
from nest_cases import around, inside, random_inputs, results, wrong

from stack.errors import UsageError
from stack.ir import Builder, Node, param, tensor
from stack.ir.axes import parse_rule
from stack.ir.space import einsum_text
from stack.passes.policies.lowerings import taken_steps
from stack.passes.policies.step_lowering import plain_nest
from stack.passes.steps.loops import axes
from stack.passes.steps.primitives import IllegalStep, parse_steps, run_steps
from stack.passes.tiling.single_ops import alone
from stack.target import as_cpu, load

AVX512 = as_cpu(load("avx512"))
ROWS = "m k, k n -> m n"
COLUMNS = "m k, n k -> m n"
TILE = "bind i cores; vectorize k; microkernel j"
TILES = "reorder i j; split j 16; reorder j.1 i; split i 4; bind j.0 cores; vectorize j.1;"
PACKED = f"{TILES} microkernel i.1; pack p1"


def group_of(
    rule: str, first: tuple[int, ...], second: tuple[int, ...], dtype: str = "f32"
) -> Node:
    operands = [param("x0", tensor(dtype, *first)), param("x1", tensor(dtype, *second))]
    shapes = np.empty(first), np.empty(second)
    shape = np.einsum(einsum_text(parse_rule(rule)), *shapes).shape
    made = tensor("i32" if dtype == "i8" else dtype, *shape)
    return alone(Builder().dot(*operands, rule=rule, type=made))


def nest(rule: str, *shapes: tuple[int, ...], dtype: str = "f32", steps: str = "") -> Node:
    return run_steps(
        plain_nest(group_of(rule, *shapes, dtype=dtype), AVX512), parse_steps(steps), AVX512
    )


def text_of(kernel: Node) -> str:
    """The body of a kernel, without types of integers, and of memory that loops carry."""
    short = re.sub(r":i64|(?<=})( : f32\[[\d, ]+\] in local)(?= {\(%)", "", inside(kernel))
    return re.sub(r": f32\[[\d, ]+\] in local\)$", ")", short, flags=re.M)


# a kernel; the step; lines before, and lines after, of the kernel or the one that packs for it
CASES: dict[str, tuple[Node, str, str, str]] = {
    "a panel whose columns are strided": (
        nest("b m k, n k -> b m n", (2, 3, 4), (8, 4), steps=TILE),
        "pack p1",
        """
%load = load(%p1, 0, 0) : f32<8x4>
%loop = loop(%o0) {kind="parallel"} : f32[2, 3, 8] {(%i < 2, %o0_1: f32[2, 3, 8])
  %load_1 = load(%p0, %i, 0, 0) : f32<3x4>
  %dot = dot(%load_1, %load) {rule="m k, n k -> m n"} : f32<3x8>
""",
        """
%alloc = alloc() {name="panel"} : f32[4, 8] in local
%load = load(%p1, 0, 0) : f32<8x4>
%transpose = transpose(%load) {perm=[1, 0]} : f32<4x8>
%store = store(%alloc, %transpose, 0, 0) : f32[4, 8] in local
%load_1 = load(%store, 0, 0) : f32<4x8>
%loop = loop(%o0) {kind="parallel"} : f32[2, 3, 8] {(%i < 2, %o0_1: f32[2, 3, 8])
  %load_2 = load(%p0, %i, 0, 0) : f32<3x4>
  %dot = dot(%load_2, %load_1) {rule="m k, k n -> m n"} : f32<3x8>
""",
    ),
    "neighbours of an instruction": (
        nest(ROWS, (3, 4), (4, 16), dtype="bf16", steps="vectorize j; microkernel i vdpbf16ps"),
        "pack p1",
        """
%load = load(%p0, 0, 0) : bf16<3x4>
%load_1 = load(%p1, 0, 0) : bf16<4x16>
%dot = dot(%load, %load_1) {rule="m k, k n -> m n"} : f32<3x16>
""",
        """
%load = load(%p0, 0, 0) : bf16<3x4>
%reshape = reshape(%load) : bf16<3x2x2>
%alloc = alloc() {name="panel"} : bf16[2, 16, 2] in local
%load_1 = load(%p1, 0, 0) : bf16<4x16>
%reshape_1 = reshape(%load_1) : bf16<2x2x16>
%transpose = transpose(%reshape_1) {perm=[0, 2, 1]} : bf16<2x16x2>
%store = store(%alloc, %transpose, 0, 0, 0) : bf16[2, 16, 2] in local
%load_2 = load(%store, 0, 0, 0) : bf16<2x16x2>
%dot = dot(%reshape, %load_2) {rule="m k pair, k n pair -> m n"} : f32<3x16>
""",
    ),
    "panels that another kernel packs": (
        nest("b m k, b k n -> b m n", (2, 3, 4), (2, 4, 8), steps=TILE),
        "pack p1 once",
        """
%loop = loop(%o0) {kind="parallel"} : f32[2, 3, 8] {(%i < 2, %o0_1: f32[2, 3, 8])
  %load = load(%p0, %i, 0, 0) : f32<3x4>
  %load_1 = load(%p1, %i, 0, 0) : f32<4x8>
""",
        """
%loop = loop(%o0) {kind="parallel"} : f32[2, 4, 8] {(%i < 2, %o0_0: f32[2, 4, 8])
  %load = load(%p1, %i, 0, 0) : f32<4x8>
  %store = store(%o0_0, %load, %i, 0, 0) : f32[2, 4, 8]
  return %store
}
return %loop
""",
    ),
    "blocks of a reduction axis": (
        nest(ROWS, (8, 6), (6, 8), steps="split i 4; vectorize j; microkernel i.1"),
        "accumulate k 2",
        """
%load = load(%p1, 0, 0) : f32<6x8>
%loop = loop(%o0) {kind="serial"} : f32[8, 8] {(%i.0 < 2, %o0_3: f32[8, 8])
  %mul = mul(%i.0, 4) : i64[]
  %load_1 = load(%p0, %mul, 0) : f32<4x6>
  %dot = dot(%load_1, %load) {rule="m k, k n -> m n"} : f32<4x8>
  %store = store(%o0_3, %dot, %mul, 0) : f32[8, 8]
""",
        """
%alloc = alloc() {name="partial"} : f32[2, 4, 8] in local
%loop = loop(%alloc) {kind="serial"} {(%block < 3, %partial_1)
  %mul = mul(%block, 2) : i64[]
  %load = load(%p1, %mul, 0) : f32<2x8>
  %eq = eq(%block, 0) : bool[]
  %loop_2 = loop(%partial_1) {kind="serial"} {(%i.0b < 2, %partial_2)
    %mul_2 = mul(%i.0b, 4) : i64[]
    %load_2 = load(%p0, %mul_2, %mul) : f32<4x2>
    %dot = dot(%load_2, %load) {rule="m k, k n -> m n"} : f32<4x8>
    %load_3 = load(%partial_2, %i.0b, 0, 0) : f32<4x8>
    %add = add(%load_3, %dot) : f32<4x8>
    %select = select(%eq, %dot, %add) : f32<4x8>
    %store_1 = store(%partial_2, %select, %i.0b, 0, 0) : f32[2, 4, 8] in local
    return %store_1
  }
  return %loop_2
}
%loop_1 = loop(%o0) {kind="serial"} : f32[8, 8] {(%i.0 < 2, %o0_3: f32[8, 8])
  %load_1 = load(%loop, %i.0, 0, 0) : f32<4x8>
  %mul_1 = mul(%i.0, 4) : i64[]
  %store = store(%o0_3, %load_1, %mul_1, 0) : f32[8, 8]
""",
    ),
    "slices of the next panel": (
        nest(ROWS, (8, 6), (6, 64), steps=PACKED),
        "prefetch p1",
        """
    %dot = dot(%load_2, %load_1) {rule="m k, k n -> m n"} : f32<4x16>
""",
        """
    %load_3 = load(%p1, %mul_3, %mul) : f32<3x16>
    %fetch = fetch(%load_1, %load_3) : f32<6x16>
""",
    ),
    "rows of the next tile": (
        nest(ROWS, (8, 6), (6, 64), steps=PACKED),
        "prefetch p0",
        """
    %dot = dot(%load_2, %load_1) {rule="m k, k n -> m n"} : f32<4x16>
""",
        """
    %dot = dot(%load_2, %load_1) {ahead=4, rule="m k, k n -> m n"} : f32<4x16>
""",
    ),
    "rows that an instruction takes as unsigned": (
        nest(
            ROWS, (3, 8), (8, 16), dtype="i8", steps="vectorize j; microkernel i vpdpbusd; pack p1"
        ),
        "compensate vpdpbusd",
        """
%dot = dot(%reshape, %load_2) {rule="m k pair, k n pair -> m n"} : i32<3x16>
""",
        """
%dot_1 = dot(%add_1, %cast_1) {rule="row k pair, k n pair -> row n"} : i32<1x16>
%reshape_3 = reshape(%dot_1) : i32<16>
%broadcast_1 = broadcast(%reshape_3) {axes=[1]} : i32<3x16>
%sub = sub(%dot, %broadcast_1) : i32<3x16>
""",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_before_and_expected(name: str) -> None:
    kernel, step, before, expected = CASES[name]
    made = run_steps(kernel, parse_steps(step), AVX512)
    assert before.strip("\n") in text_of(kernel)
    parts = [text_of(n) for n in (made, *made.args) if n.op == "kernel"]
    assert any(expected.strip("\n") in part for part in parts)
    arrays = random_inputs(around(kernel))
    assert not wrong(made, arrays, results(around(kernel), arrays), 1e-2)


BATCH = ("b m k, b k n -> b m n", (2, 3, 4), (2, 4, 8))
SQUARE = (ROWS, (8, 6), (6, 64))
REFUSED = {
    "no product": (
        SQUARE,
        "vectorize j; pack p1",
        "no matrix product of blocks reads columns",
    ),
    "rows": (SQUARE, f"{PACKED}; pack p0", "no matrix product of blocks reads columns from p0"),
    "another time": (SQUARE, f"{PACKED} twice", "a panel is packed here or `once`, not 'twice'"),
    "a copy, once": (SQUARE, f"{PACKED}; pack panel once", "panel is no input"),
    "too large": (
        (COLUMNS, (8, 600_000), (8, 600_000)),
        "vectorize j; microkernel i; pack p1",
        "a panel of 19200000 bytes; local memory has at most 1048576",
    ),
    "no axis of the reduction": (
        SQUARE,
        f"{TILES} microkernel i.1; accumulate m 2",
        "the product does not reduce 'm'; its reduction axes are: k",
    ),
    "no whole blocks": (
        SQUARE,
        f"{TILES} microkernel i.1; accumulate k 4",
        "blocks of 4 do not divide the 6 elements along k",
    ),
    "an axis that is there": (
        SQUARE,
        f"{TILES} microkernel i.1; accumulate k 2 i.0",
        "axis i.0 exists already",
    ),
    "a packed panel": (SQUARE, f"{PACKED}; accumulate k 2 c", ""),
    "no tiles of rows": (BATCH, f"{TILE}; prefetch p1", "in no serial loop over tiles of rows"),
    "one panel": (
        (ROWS, (8, 6), (6, 16)),
        "split i 4; vectorize j; microkernel i.1; prefetch p1",
        "no loop selects a panel of p1",
    ),
    "another memory": (SQUARE, f"{PACKED}; prefetch p7", "no memory 'p7'"),
    "no rows that move": (
        ("m b k, b k n -> m n", (8, 3, 6), (3, 6, 64)),
        f"{TILES} microkernel i.1; pack p1; prefetch o0",
        "the product reads no block of o0",
    ),
    "floats": (
        SQUARE,
        f"{PACKED}; compensate vpdpbusd",
        "vpdpbusd does not multiply f32 by f32",
    ),
    "signed rows": (SQUARE, f"{PACKED}; compensate vdpbf16ps", "vdpbf16ps takes no unsigned rows"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_legal_is_refused(name: str) -> None:
    spec, steps, message = REFUSED[name]
    kernel = plain_nest(group_of(*spec), AVX512)
    if not message:
        run_steps(kernel, parse_steps(steps), AVX512)
        return
    with pytest.raises(IllegalStep) as found:
        run_steps(kernel, parse_steps(steps), AVX512)
    assert message in str(found.value)


def test_strided_columns_have_to_be_packed() -> None:
    """A list by hand that leaves them is refused before any code is printed."""
    group = group_of(COLUMNS, (8, 6), (64, 6))
    steps = TILES + " microkernel i.1"
    with pytest.raises(UsageError, match="columns that `microkernel` reads from p1 are strided"):
        taken_steps(group, steps, AVX512)
    assert taken_steps(group, f"{steps}; pack p1", AVX512)


RULES = (ROWS, COLUMNS, "k m, k n -> m n", "k n, m k -> m n", "m k, k n -> n m") + (
    "b m k, k n -> b m n",
    "b m k, b n k -> b m n",
    "m k l, l k n -> m n",
)


def random_kernel(rng: random.Random) -> tuple[Node, Node, list[str]]:
    """The nest of a random product, and its kernel after random legal steps."""
    sizes = {c: rng.choice((1, 2, 3, 4, 8, 12)) for c in "bmknl"} | {"n": rng.choice((4, 16, 32))}
    rule, dtype = rng.choice(RULES), rng.choice(("f32", "f32", "bf16", "i8"))
    first, second = (
        tuple(sizes[c] for c in side.split()) for side in rule.split("->")[0].split(",")
    )
    kernel = before = plain_nest(group_of(rule, first, second, dtype), AVX512)
    taken: list[str] = []

    def take(text: str) -> bool:
        nonlocal kernel
        (step,) = parse_steps(text)
        is_legal = not step.why_not(kernel, AVX512)
        if is_legal:
            kernel = step.apply(kernel)
            taken.append(text)
        return is_legal

    for axis in list(axes(kernel)):
        if rng.random() < 0.5:
            take(f"split {axis} {rng.choice((2, 3, 4, 8))} tail={rng.choice(('overlap', 'peel'))}")
    take(f"bind {rng.choice([*axes(kernel)])} cores")
    columns = "ijkl"[len(rule.partition("->")[2].split()) - 1]
    any(take(f"vectorize {axis}") for axis in (f"{columns}.1", columns))
    names = ("", {"bf16": "vdpbf16ps", "i8": "vpdpbusd"}.get(dtype, ""))
    tried = [f"microkernel {axis} {rng.choice(names)}" for axis in reversed([*axes(kernel)])]
    any(take(text.strip()) for text in tried)
    for _ in range(8):
        memory, depth = rng.choice(("p0", "p1", "panel")), rng.choice(("k", "k1"))
        texts = [f"pack {memory}", f"pack {memory} once", f"prefetch {memory}"]
        take(rng.choice([*texts, f"accumulate {depth} {rng.choice((1, 2, 4))}"]))
    take("compensate vpdpbusd")
    return before, kernel, taken


def check_random(seeds: range) -> set[str]:
    """The names of steps in random lists, after which kernels compute what their nests do."""
    found: set[str] = set()
    for seed in seeds:
        before, made, taken = random_kernel(random.Random(seed))
        arrays = random_inputs(around(before))
        why = wrong(made, arrays, results(around(before), arrays), 3e-2)
        assert not why, f"{seed}: {why} after {'; '.join(taken)}\n{around(before)}\n{around(made)}"
        found |= {text.partition(" ")[0] for text in taken}
    return found


def test_random_lists() -> None:
    found = check_random(range(150))
    assert {"microkernel", "pack", "prefetch", "accumulate", "compensate"} <= found


@pytest.mark.slow
@pytest.mark.parametrize("start", range(1000, 3000, 500))
def test_many_random_lists(start: int) -> None:
    check_random(range(start, start + 500))
