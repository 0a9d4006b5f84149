"""Streams in parts of their axis: what they mean, that they merge, and when it is worth it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from rule_cases import func
from stream_blocks import array_of, wide
from stream_harness import prepared, streamed, streams
from stream_inputs import DOT_PROGRAMS, ROW_PROGRAMS, inputs
from stream_torch import PROGRAMS

import stack
from stack.errors import RuleError
from stack.ir import Func, Node, parse, verify
from stack.ir.builder import make
from stack.rewrite import Pipeline
from stack.target import as_gpu

torch = pytest.importorskip("torch")
Tensor = Any
# whose results have the streamed axis: each of its elements waits for all
LONG = ("softmax", "log_softmax", "layer", "rms")


def split(program: Callable[..., Any], args: list[Tensor], spec: str) -> Func:
    func, notes = streamed(prepared(stack.trace(program, *args)))
    assert streams(func), notes
    made = Pipeline(spec).run(func).func
    verify(made)
    assert parse(str(made)) is made
    return made


def assert_results(made: Func, program: Callable[..., Any], args: list[Tensor]) -> None:
    with np.errstate(all="ignore"):
        found = made.interpret(*(array_of(a) for a in args))
    for got, want in zip(
        found if isinstance(found, tuple) else (found,), wide(program, args), strict=True
    ):
        largest = np.max(np.abs(want[np.isfinite(want)]), initial=1e-30)
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5 * float(largest))


@pytest.mark.every(2)
@pytest.mark.parametrize("name", [*DOT_PROGRAMS, *(n for n in ROW_PROGRAMS if n not in LONG)])
def test_programs(name: str, rng: np.random.Generator) -> None:
    """As tensors and as kernels; 17 and 40 places are parts of 16 with a rest."""
    args = [torch.from_numpy(a) for a in inputs(name, rng)]
    program = PROGRAMS[name]
    made = split(program, args, "split_reductions{parts=3}")
    assert any("part" in s.attrs for s in streams(made))
    assert_results(made, program, args)
    kernels = Pipeline("fuse,blocks").run(made, verbose=True)
    notes = [note for record in kernels.records for note in record.notes]
    assert not any("stays as it is" in n for n in notes), notes
    assert_results(kernels.func, program, args)


@pytest.mark.parametrize("name", LONG)
def test_what_has_the_axis_stays_whole(name: str, rng: np.random.Generator) -> None:
    args = [torch.from_numpy(a) for a in inputs(name, rng)]
    made = split(PROGRAMS[name], args, "split_reductions{parts=3}")
    assert not any("part" in s.attrs for s in streams(made))
    assert_results(made, PROGRAMS[name], args)


@pytest.mark.parametrize("fill", [-torch.inf, -1e9])
def test_parts_without_a_visible_place(fill: float, rng: np.random.Generator) -> None:
    """A hidden part contributes nothing; a hidden row is what eager computes."""

    def program(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        scores = q @ k.mT
        i, j = torch.arange(scores.shape[-2])[:, None], torch.arange(scores.shape[-1])
        return torch.softmax(scores.masked_fill((j > i) | (i - j > 20) | (i == 7), fill), -1) @ v

    args = [torch.from_numpy(rng.standard_normal((2, n, 16), np.float32)) for n in (64, 131, 131)]
    args[2] += 10
    made = split(program, args, "split_reductions{parts=5},fuse,blocks")
    assert_results(made, program, args)


def test_offsets_merge_by_the_larger_max(rng: np.random.Generator) -> None:
    def program(x: Tensor) -> Tensor:
        return torch.logsumexp(x, -1)

    x = torch.from_numpy(rng.standard_normal((3, 101), np.float32))
    x[0] += 1e4
    x[1, :50], x[2] = -1e4, -torch.inf
    assert_results(split(program, [x], "split_reductions{parts=4}"), program, [x])


# ---- the op


def lse() -> Node:
    x = "%x: f32[3, 9]"
    lines = """%m = reduce(%x) {axes=[1], kind="max"} : f32[3]
    %b = broadcast(%m) {axes=[0]} : f32[3, 9]
    %d = sub(%x, %b) : f32[3, 9]
    %e = exp(%d) : f32[3, 9]
    %z = reduce(%e) {axes=[1], kind="sum"} : f32[3]"""
    (found,) = streams(streamed(func(x, lines))[0])
    return found


def in_parts(stream: Node, part: Any) -> Node:
    return make("stream", stream.args, {**stream.attrs, "part": part}, stream.blocks)


def test_each_part_has_results_of_its_own(rng: np.random.Generator) -> None:
    made = in_parts(lse(), 4)
    whole = Func("main", stack.ir.Block(made.args, (made,)))
    assert made.shape == (3, 3)
    verify(whole)
    assert parse(str(whole)) is whole
    x = rng.standard_normal((3, 9)).astype(np.float32)
    want = [np.exp(p - p.max(1, keepdims=True)).sum(1) for p in (x[:, :4], x[:, 4:8], x[:, 8:])]
    np.testing.assert_allclose(whole.interpret(x), np.stack(want), rtol=1e-6)
    plain = Pipeline("unfuse").run(whole).func
    assert not streams(plain)
    np.testing.assert_array_equal(plain.interpret(x), whole.interpret(x))


@pytest.mark.parametrize("part", [0, -4])
def test_a_part_has_elements(part: int) -> None:
    with pytest.raises(RuleError, match="parts of one element or more"):
        in_parts(lse(), part)


# ---- when


def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    groups = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
    return torch.softmax(q @ k.mT * q.shape[-1] ** -0.5, -1) @ v


def parts_of(batch: int, rows: int, places: int, heads: int = 32) -> int:
    shapes = ((batch, 32, rows, 128), (batch, heads, places, 128), (batch, heads, places, 128))
    args = [torch.zeros(s, dtype=torch.bfloat16, device="meta") for s in shapes]
    func = Pipeline("split_reductions").run(streamed(prepared(stack.trace(attention, *args)))[0])
    (stream,) = streams(func.func)
    return -(-places // stream.attrs["part"]) if "part" in stream.attrs else 1


def test_few_rows_of_many_places_are_split() -> None:
    assert parts_of(8, 1, 32768, 8) >= 4
    assert parts_of(1, 1, 131072, 8) >= 16


def test_what_fills_the_device_stays_whole() -> None:
    assert parts_of(4, 2048, 2048) == 1
    assert parts_of(1, 1, 64) == 1


def test_few_rows_of_a_long_vocabulary_are_in_parts() -> None:
    """A product of f32 takes long: 64 programs leave half of a GPU idle. A result has an axis
    of one place that no state has."""

    def loss(x: Tensor, w: Tensor, target: Tensor) -> Tensor:
        return torch.log_softmax(x @ w.T, -1).gather(-1, target)

    args = [torch.empty(4096, 768), torch.empty(32000, 768), torch.zeros(4096, 1).long()]
    func, notes = streamed(prepared(stack.trace(loss, *args)))
    assert streams(func), notes
    made = Pipeline("split_reductions").run(func).func
    assert any("part" in s.attrs for s in streams(made))


def column_parts(rows: int, columns: int) -> int:
    """The parts of a variance of columns, for an H100."""
    x = torch.empty(rows, columns, device="meta")
    func, notes = streamed(prepared(stack.trace(lambda x: x.var(0), x)))
    assert streams(func), notes
    made = Pipeline("split_reductions").run(func).func
    (part,) = {s.attrs.get("part", rows) for s in streams(made)}
    return -(-rows // part)


def test_parts_of_columns_of_odd_length_are_one_wave() -> None:
    """33 parts would fill four waves with nothing left over, but each waits for its first loads."""
    assert column_parts(4096, 4096) == 8
    assert column_parts(4097, 4096) == 8


def test_columns_that_fill_many_waves_stay_whole() -> None:
    assert column_parts(512, 1 << 20) == 1


@pytest.mark.parametrize(("heads", "tile"), [(16, (8, 3)), (64, (4, 2))])
def test_a_program_alone_takes_the_whole_multiprocessor(heads: int, tile: tuple[int, int]) -> None:
    """128 programs with parts of 4096 keys; twin: 256 without parts, two on a multiprocessor."""
    shapes = ((heads, 512, 128), (heads, 8192, 128), (heads, 8192, 128))
    args = [torch.empty(s, dtype=torch.bfloat16, device="meta") for s in shapes]
    func = prepared(stack.trace(lambda q, k, v: torch.softmax(q @ k.mT, -1) @ v, *args))
    steps = "stream{min_axis=32769,loops=blocks},split_reductions,schedule"
    made = Pipeline(steps).run(func, target=as_gpu(None)).func
    (stream,) = streams(made)
    warps, stages = tile
    assert ("part" in stream.attrs) == (heads == 16)
    assert str(stream.attrs["schedule"]).endswith(f"warps={warps} stages={stages}")
