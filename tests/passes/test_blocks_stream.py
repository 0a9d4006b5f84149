"""Streams to kernels of blocks: values against double precision, and which tiles are left out."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from stream_blocks import array_of, check, limited, loops, lowered, wide
from stream_harness import prepared, streamed
from stream_inputs import DOT_PROGRAMS, ROW_PROGRAMS, inputs
from stream_variants import (
    HIDDEN,
    KEPT,
    LIMITS,
    SKIPPING,
    VARIANTS,
    masked,
    normal,
    variant_inputs,
)

import stack
from stack.ir import parse
from stack.ir.node import walk
from stack.rewrite import Pipeline

torch = pytest.importorskip("torch")
Tensor = Any


# ---- values


@pytest.mark.every(3)
@pytest.mark.parametrize("name", [*DOT_PROGRAMS, *ROW_PROGRAMS])
def test_programs(name: str, rng: np.random.Generator) -> None:
    from stream_torch import PROGRAMS

    check(PROGRAMS[name], [torch.from_numpy(a) for a in inputs(name, rng)])


@pytest.mark.each
@pytest.mark.parametrize("seq", [1, 37, 130])
@pytest.mark.parametrize("name", VARIANTS)
def test_variants(name: str, seq: int, rng: np.random.Generator) -> None:
    from stack.demos.gpu_attention import VARIANTS as PROGRAMS

    if seq == 1 and name == "window":
        pytest.skip("its window would be empty")
    program, args = PROGRAMS[name], variant_inputs(name, rng, seq)
    if seq == 1:
        func = Pipeline("fuse,blocks").run(streamed(prepared(stack.trace(program, *args)))[0]).func
        (want,) = wide(program, args)
        got = func.interpret(*(array_of(a) for a in args))
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
        return
    func = check(program, args)
    assert len([n for n in func.nodes if n.op == "kernel"]) == 1
    # 37 keys are one block, without a loop
    assert bool(limited(func)) == (name in SKIPPING and seq > 64)


@pytest.mark.each
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("name", ["causal", "window", "full", "sigmoid"])
def test_16_bits(name: str, dtype: str, rng: np.random.Generator) -> None:
    from stack.demos.gpu_attention import VARIANTS as PROGRAMS

    kind = getattr(torch, dtype)
    args = [a.to(kind) for a in variant_inputs(name, rng, 130)]
    check(PROGRAMS[name], args, 2e-2 if dtype == "bfloat16" else 3e-3)


# ---- what is left out


@pytest.mark.each
@pytest.mark.parametrize("name", list(LIMITS))
@pytest.mark.parametrize(("rows", "columns"), [(90, 197), (256, 128)])
def test_comparisons_of_positions_limit_the_loop(
    name: str, rows: int, columns: int, rng: np.random.Generator
) -> None:
    """In rows without visible columns, both sides are nan."""
    args = [normal(rng, 2, n, 16) for n in (rows, columns, columns)]
    func = check(masked(LIMITS[name]), args)
    is_band = name in ("window", "window of one", "both sides")
    # these hide a part of one block only, as the end of the axis does: all blocks are computed
    is_part = name == "first columns" or (name == "columns alone" and columns == 128)
    expected = (0, 0) if is_part else (1, 1) if is_band else (2, 0)
    assert (limited(func), len(loops(func, "branch"))) == expected


@pytest.mark.parametrize("name", list(KEPT))
def test_what_may_not_be_left_out(name: str, rng: np.random.Generator) -> None:
    hide, fill = KEPT[name]
    args = [normal(rng, 2, 130, 16) for _ in range(3)]
    assert not limited(check(masked(hide, fill), args))


def test_a_condition_on_data_keeps_all_tiles(rng: np.random.Generator) -> None:
    def program(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        return torch.softmax((q @ k.mT).masked_fill(mask, HIDDEN), -1) @ v

    args = [normal(rng, 2, 130, 16) for _ in range(3)]
    mask = torch.from_numpy(rng.integers(0, 2, (130, 130)) == 1)
    mask[0], mask[1, :100] = True, True
    mask[1, 100:] = False
    assert not limited(check(program, [*args, mask]))


def test_small_integers_wrap_and_are_not_positions(rng: np.random.Generator) -> None:
    def program(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        scores = q @ k.mT
        line = torch.arange(scores.shape[-1]).to(torch.int8)
        hidden = line[None, :] > line[:, None]
        return torch.softmax(scores.masked_fill(hidden, HIDDEN), -1) @ v

    assert not limited(check(program, [normal(rng, 2, 300, 16) for _ in range(3)]))


def test_a_square_of_positions_is_not_a_line(rng: np.random.Generator) -> None:
    def hide(i: Tensor, j: Tensor) -> Tensor:
        return j > i * i - 90 * i + 100

    assert not limited(check(masked(hide), [normal(rng, 2, 190, 16) for _ in range(3)]))


@pytest.mark.parametrize("turned", [False, True])
def test_a_mask_that_is_read_at_two_places(turned: bool, rng: np.random.Generator) -> None:
    """Elements that are hidden at one read are visible at the other."""

    def program(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        scores = q @ k.mT
        line = torch.arange(scores.shape[-1])
        part = torch.where(line[None, :] > line[:, None], 0.0, scores)
        other = part.mT if turned else part.flip(-1)
        return (part * other) @ v

    check(program, [normal(rng, 2, 130, 16) for _ in range(3)])


def test_a_sum_of_what_is_hidden_is_kept(rng: np.random.Generator) -> None:
    """One of the two sums of a row is over all elements."""

    def program(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        weights = torch.softmax(q @ k.mT, -1)
        line = torch.arange(weights.shape[-1])
        return weights.masked_fill(line[None, :] > line[:, None], 0.0) @ v

    assert not limited(check(program, [normal(rng, 2, 130, 16) for _ in range(3)]))


# ---- tiles


def two_sums(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    weights = torch.softmax(q @ k.mT, -1)
    return weights @ v, weights @ (v * v)


@pytest.mark.parametrize(
    ("dtype", "width", "one", "two"),
    [
        (
            "bfloat16",
            128,
            "m=64@grid k=64@serial warps=4 stages=3",
            "m=128@grid k=64@serial warps=8 stages=2",
        ),
        (
            "bfloat16",
            64,
            "m=64@grid k=64@serial warps=4 stages=3",
            "m=128@grid k=64@serial warps=4 stages=2",
        ),
        (
            "float32",
            128,
            "m=128@grid k=32@serial warps=8 stages=2",
            "m=128@grid k=32@serial warps=8 stages=2",
        ),
        (
            "float32",
            64,
            "m=64@grid k=64@serial warps=4 stages=3",
            "m=64@grid k=32@serial warps=4 stages=2",
        ),
    ],
)
def test_parts_of_f32_take_registers(dtype: str, width: int, one: str, two: str) -> None:
    from stack.demos.gpu_attention import causal

    args = [torch.zeros(1, 2, 512, width, dtype=getattr(torch, dtype)) for _ in range(3)]
    for program, tile in ((causal, one), (two_sums, two)):
        func, _ = streamed(prepared(stack.trace(program, *args)))
        func = Pipeline("fuse,schedule").run(func).func
        (group,) = (n for n in func.nodes if n.op == "stream")
        assert group.attrs["schedule"] == tile


def query_gradient(
    q: Tensor, k: Tensor, v: Tensor, total: Tensor, g: Tensor, mean: Tensor
) -> Tensor:
    """From the sums of exponentials, the gradient of the result, and its mean over values."""
    weights = torch.exp((q @ k.mT).float()) / total
    return (weights * ((g @ v.mT).float() - mean)).to(q.dtype) @ k


@pytest.mark.parametrize(
    ("tokens", "width", "dtype", "tile"),
    [
        (2048, 128, "bfloat16", "m=128@grid k=128@serial warps=8 stages=2"),
        (1024, 128, "bfloat16", "m=64@grid k=64@serial warps=4 stages=2"),
        (2048, 64, "bfloat16", "m=64@grid k=64@serial warps=4 stages=3"),
        (2048, 128, "float32", "m=128@grid k=32@serial warps=8 stages=2"),
    ],
)
def test_one_sum_of_two_tables_has_large_tiles(
    tokens: int, width: int, dtype: str, tile: str
) -> None:
    widths = (width, width, width, 1, width, 1)
    kinds = [torch.float32 if n == 1 else getattr(torch, dtype) for n in widths]
    args = [torch.zeros(1, 2, tokens, n, dtype=t) for n, t in zip(widths, kinds, strict=True)]
    func, _ = streamed(prepared(stack.trace(query_gradient, *args)))
    func = Pipeline("fuse,schedule").run(func).func
    (group,) = (n for n in func.nodes if n.op == "stream")
    assert group.attrs["schedule"] == tile


def key_gradient(q: Tensor, k: Tensor, v: Tensor, total: Tensor, g: Tensor, mean: Tensor) -> Tensor:
    """From the same values as `query_gradient`, the gradient of keys: a sum over queries."""
    weights = torch.exp((q @ k.mT).float()) / total
    return (weights * ((g @ v.mT).float() - mean)).to(q.dtype).mT @ q


def test_statistics_of_each_iteration_take_the_registers_of_large_tiles() -> None:
    widths = (128, 128, 128, 1, 128, 1)
    kinds = [torch.float32 if n == 1 else torch.bfloat16 for n in widths]
    args = [torch.zeros(1, 2, 2048, n, dtype=t) for n, t in zip(widths, kinds, strict=True)]
    func, _ = streamed(prepared(stack.trace(key_gradient, *args)))
    func = Pipeline("fuse,schedule").run(func).func
    (group,) = (n for n in func.nodes if n.op == "stream")
    assert group.attrs["schedule"] == "m=64@grid k=64@serial warps=4 stages=2"


def many_sums(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, ...]:
    weights = torch.softmax(q @ k.mT, -1)
    return tuple(weights @ (v * i) for i in (1, 2, 3))


@pytest.mark.parametrize(
    ("rows", "dtype", "width"), [(512, "bfloat16", 128), (96, "float32", 64), (50, "float32", 128)]
)
@pytest.mark.parametrize("tiles", ["", "schedule,"])
def test_each_warp_has_rows_of_its_own(rows: int, dtype: str, width: int, tiles: str) -> None:
    args = [torch.zeros(1, 2, n, width, dtype=getattr(torch, dtype)) for n in (rows, 512, 512)]
    func, _ = streamed(prepared(stack.trace(many_sums, *args)))
    func = Pipeline(f"fuse,{tiles}blocks").run(func).func
    found = 0
    for kernel in (n for n in func.nodes if n.op == "kernel"):
        heights = [int(m.shape[0]) for _, m in walk(kernel.blocks[0]) if m.op == "dot"]
        found += len(heights)
        assert not heights or int(kernel.attrs["warps"]) <= max(4, min(heights) // 16)
    assert found > 3


@pytest.mark.every(2)
@pytest.mark.parametrize("rows", range(512, 528))
def test_sums_of_shared_weights_are_one_stream(rows: int) -> None:
    """However its nodes lie in memory, by which sets of them are in order."""
    args = [torch.zeros(1, 2, n, 128, dtype=torch.bfloat16) for n in (rows, 512, 512)]
    made, _ = streamed(prepared(stack.trace(many_sums, *args)))
    assert [n.op for n in made.nodes if n.op in ("stream", "dot", "reduce")] == ["stream"]


# the squares and the product of two projections, as CLIP compares a text with a picture
PROJECTIONS = """func @f(%x: f32[1, 300], %w: f32[256, 300], %y: f32[1, 520], %v: f32[256, 520]) \
-> (f32[1], f32[1], f32[1, 1]) at tensor {
  %stream = stream(%x, %w, %y, %v) {name="sums"} : (f32[1], f32[1], f32[1, 1]) \
{(%p0: f32[1, 300], %p1: f32[256, 300], %p2: f32[1, 520], %p3: f32[256, 520])
    %a = dot(%p0, %p1) {rule="a b, k b -> a k"} : f32[1, 256]
    %c = mul(%a, %a) : f32[1, 256]
    %s = reduce(%c) {axes=[1], kind="sum"} : f32[1]
    %b = dot(%p2, %p3) {rule="a b, k b -> a k"} : f32[1, 256]
    %d = mul(%b, %b) : f32[1, 256]
    %t = reduce(%d) {axes=[1], kind="sum"} : f32[1]
    %r = reshape(%b) : f32[256, 1]
    %u = dot(%a, %r) {rule="a k, k b -> a b"} : f32[1, 1]
    return %s, %t, %u
  } {(%o0: f32[1], %o1: f32[1], %o2: f32[1, 1], %n0: f32[1], %n1: f32[1], %n2: f32[1, 1])
    return %o0, %o1, %o2
  } {(%s0: f32[1], %s1: f32[1], %s2: f32[1, 1], %p0: f32[1, 300], %p1: f32[256, 300], \
%p2: f32[1, 520], %p3: f32[256, 520])
    return %s0, %s1, %s2
  }
  %s = item(%stream) {index=0} : f32[1]
  %t = item(%stream) {index=1} : f32[1]
  %u = item(%stream) {index=2} : f32[1, 1]
  return %s, %t, %u
}
"""


def test_sums_of_two_depths_are_loops_of_their_own(rng: np.random.Generator) -> None:
    """No loop computes both: a list of steps that joined them was refused."""
    source = parse(PROJECTIONS)
    made = Pipeline("blocks").run(source).func
    assert [n.op for n in made.nodes if n.op != "item"] == ["kernel"]
    x, w, y, v = (rng.standard_normal(p.shape).astype("f4") for p in source.params)
    a, b = (p.astype("f8") @ q.T.astype("f8") for p, q in ((x, w), (y, v)))
    wanted = (a * a).sum(-1), (b * b).sum(-1), a @ b.T
    for got, want in zip(made.interpret(x, w, y, v), wanted, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-2)


# ---- rows without elements, infinities


def test_rows_without_an_element_are_nan(rng: np.random.Generator) -> None:
    args = [normal(rng, 2, 130, 16) for _ in range(3)]
    func = check(masked(lambda i, j: j > i - 70), args)
    assert limited(func) == 2
    (want,) = wide(masked(lambda i, j: j > i - 70), args)
    assert np.isnan(want[:, :70]).all() and np.isfinite(want[:, 70:]).all()


def test_infinite_values(rng: np.random.Generator) -> None:
    def lse(x: Tensor) -> Tensor:
        return torch.logsumexp(x, -1)

    x = normal(rng, 6, 5000)
    x[1], x[2, :3000], x[3, 1:], x[4, 7], x[5, 4000] = HIDDEN, HIDDEN, HIDDEN, math.inf, math.nan
    check(lse, [x])


@pytest.mark.parametrize("fill", [-1e9, -1e30, -3.4028234663852886e38])
def test_a_row_of_one_huge_value_is_uniform(fill: float, rng: np.random.Generator) -> None:
    def program(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        return torch.softmax((q @ k.mT).masked_fill(mask, fill), -1) @ v

    args = [normal(rng, 2, 130, 16) for _ in range(3)]
    mask = torch.zeros(130, 130, dtype=torch.bool)
    mask[0], mask[1, :100] = True, True
    check(program, [*args, mask])


def test_an_infinity_that_is_hidden_counts_as_nothing(rng: np.random.Generator) -> None:
    args = [normal(rng, 2, 130, 16) for _ in range(3)]
    args[1][:, 129] = math.inf
    func = lowered(masked(LIMITS["lower"]), args)
    with np.errstate(all="ignore"):
        got = func.interpret(*(array_of(a) for a in args))
    assert np.isfinite(got[:, :129]).all()


@pytest.mark.parametrize(("op", "parts"), [("add", 2), ("sub", 0)])
def test_a_mask_that_is_added(op: str, parts: int, rng: np.random.Generator) -> None:
    """A mask of all heads at once. A subtracted value is -inf too."""

    def program(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        mask = torch.triu(torch.full((130, 130), HIDDEN), 1)
        return torch.softmax(getattr(torch, op)(q @ k.mT, mask), -1) @ v

    args = [normal(rng, 2, 130, 16) for _ in range(3)]
    assert limited(check(program, args)) == parts


# ---- gradients: a table that is read along both axes


def gradients(hide: Callable[[Tensor, Tensor], Tensor] | None) -> Callable[..., tuple[Tensor, ...]]:
    """Gradients of softmax(q k^T) v, written out, with as many rows of k as there are."""

    def program(q: Tensor, k: Tensor, v: Tensor, seed: Tensor) -> tuple[Tensor, ...]:
        scores = q @ k.mT
        if hide is not None:
            rows, columns = torch.arange(q.shape[-2])[:, None], torch.arange(k.shape[-2])
            scores = scores.masked_fill(hide(rows, columns), HIDDEN)
        weights = torch.softmax(scores, -1)
        by_weight = seed @ v.mT
        centred = weights * (by_weight - (by_weight * weights).sum(-1, keepdim=True))
        return weights @ v, centred @ k, centred.mT @ q, weights.mT @ seed

    return program


@pytest.mark.parametrize("sizes", [(130, 130), (70, 197), (37, 33)])
def test_gradients(sizes: tuple[int, int], rng: np.random.Generator) -> None:
    m, k = sizes
    args = [normal(rng, 2, n, 16) for n in (m, k, k, m)]
    check(gradients(None), args, balance=100)


@pytest.mark.parametrize(
    ("hide", "both"),
    [
        (lambda i, j: j > i, True),
        (lambda i, j: (j > i) | (i - j >= 20), True),
        (lambda i, j: (i + j) % 3 == 1, False),
    ],
    ids=["triangle", "band", "pattern"],
)
def test_gradients_leave_out_what_is_hidden(
    hide: Callable[[Tensor, Tensor], Tensor], both: bool, rng: np.random.Generator
) -> None:
    args = [normal(rng, 2, 150, 16) for _ in range(4)]
    func = check(gradients(hide), args, balance=100)
    kernels = [n for n in func.nodes if n.op == "kernel"]
    cut = sum(any(x.attrs.get("limited") for _, x in walk(n.blocks[0])) for n in kernels)
    assert len(kernels) == 2
    assert cut == (2 if both else 0)


@pytest.mark.parametrize("share", [2, 4])
def test_gradients_of_shared_keys(share: int, rng: np.random.Generator) -> None:
    """Heads are one axis here and two there: still one program for each, not for each pair."""

    def program(q: Tensor, k: Tensor, v: Tensor, seed: Tensor) -> tuple[Tensor, ...]:
        many = [a.repeat_interleave(share, dim=1) for a in (k, v)]
        return gradients(lambda i, j: j > i)(q, *many, seed)

    kv = [normal(rng, 2, 2, 70, 16) for _ in range(2)]
    q, seed = (normal(rng, 2, 2 * share, 70, 16) for _ in range(2))
    func = check(program, [q, *kv, seed], balance=100)
    for kernel in (n for n in func.nodes if n.op == "kernel" and "dot" in n.attrs["ops"]):
        nodes = [n for _, n in walk(kernel.blocks[0])]
        grid = [n for n in nodes if n.op == "loop" and n.attrs.get("kind") == "grid"]
        assert len(grid) <= 3


# ---- the last step, which the extent does not fill


def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.softmax(q @ k.mT, -1) @ v


def computed_values(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.softmax(q @ k.mT, -1) @ (v - v.amax(-1, keepdim=True))


def sigmoids(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.sigmoid(q @ k.mT) @ v


@pytest.mark.parametrize(
    ("program", "length", "count"),
    [
        (attention, 300, 1),  # one select hides the places from the max, the sum and the product
        (attention, 320, 0),
        (sigmoids, 300, 1),  # no max: what is multiplied is 0
        (sigmoids, 320, 0),
    ],
)
def test_one_select_hides_what_is_past_the_end(
    program: Callable[..., Any], length: int, count: int, rng: np.random.Generator
) -> None:
    args = [normal(rng, 2, length, 16) for _ in range(3)]
    func = check(program, args)
    (loop,) = loops(func)
    wide_ones = [
        n
        for n in loop.blocks[0].nodes
        if n.op == "select" and n.shape[-1] == 64 and n.tensor.rank > 1
    ]
    assert len(wide_ones) == count


def test_what_meets_hidden_places_may_be_infinite(rng: np.random.Generator) -> None:
    """Values that are computed in the stream: 0 times what they are past the end is 0."""
    q, k, v = (normal(rng, 2, 300, 16) for _ in range(3))
    check(lambda q, k, v: torch.softmax(q @ k.mT, -1) @ (1 / v), [q, k, v.abs() + 1])
    check(computed_values, [q, k, v])


@pytest.mark.parametrize(
    ("program", "length", "step"),
    [
        (attention, 197, 256),
        (attention, 100, 128),
        (attention, 256, 256),
        (attention, 192, 64),  # three steps hold less than one of 256
        (attention, 257, 64),
        (attention, 64, 64),
        (masked(LIMITS["lower"]), 197, 64),  # whole steps are hidden
    ],
)
def test_a_short_axis_is_taken_in_one_step(
    program: Callable[..., Any], length: int, step: int, rng: np.random.Generator
) -> None:
    func = check(program, [normal(rng, 2, length, 16) for _ in range(3)])
    found = [loop.blocks[0].params[0].attrs["extent"] for loop in loops(func)] or [1]
    assert found[0] == -(-length // step)


def test_rows_that_the_result_groups_otherwise(rng: np.random.Generator) -> None:
    """Attention in windows of 5 x 5: its rows are two axes of the queries, one of the result."""

    def program(x: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
        windows = x.view(2, 3, 5, 3, 5, 2, 8).permute(0, 1, 3, 5, 2, 4, 6)
        q = (2 * windows).reshape(18, 2, 25, 8)
        pooled = torch.softmax(q @ k.mT + bias, -1) @ v
        return pooled.transpose(1, 2).reshape(18, 25, 16)

    x, bias = normal(rng, 2, 15, 15, 16), normal(rng, 2, 25, 25)
    func = check(program, [x, *(normal(rng, 18, 2, 25, 8) for _ in range(2)), bias])
    assert sum(n.op == "dot" for _, n in walk(func.body)) == 2
