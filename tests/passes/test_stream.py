"""stream: the derivation on small programs, and near misses that must stay as they are."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from random_programs import random_program
from rule_cases import Kept, Rewrites, check_kept, func
from stream_harness import check_tiles, run_in_tiles, streamed, streams

from stack.ir import Builder, Node, param, parse, tensor, verify
from stack.ir.node import topological
from stack.passes.policies.cpu_streams import CpuStreams
from stack.passes.stream import Stream
from stack.passes.streaming import price
from stack.passes.tiling.frame import CannotTile
from stack.rewrite import Fuel, Pipeline
from stack.rewrite.log import Log
from stack.schedule import Schedule
from stack.target import Cpu, as_cpu, as_gpu, load

ALL = "stream{min_axis=2}"
X, SV = "%x: f32[3, 9]", "%s: f32[3, 9], %v: f32[9, 4]"
MAX = '%m = reduce(%x) {axes=[1], kind="max"} : f32[3]\n'
AWAY = (
    MAX + "%b = broadcast(%m) {axes=[0]} : f32[3, 9]\n%d = sub(%x, %b) : f32[3, 9]\n"
    "%e = exp(%d) : f32[3, 9]\n"
)
SUM = '%l = reduce(%e) {axes=[1], kind="sum"} : f32[3]\n'
MEAN = (
    '%t = reduce(%x) {axes=[1], kind="sum"} : f32[3]\n%u = div(%t, 9.0:f32) : f32[3]\n'
    "%b = broadcast(%u) {axes=[0]} : f32[3, 9]\n%d = sub(%x, %b) : f32[3, 9]\n"
)
# dots of [2, 64, 8] make tables of [64, 65]
TABLE = "%q: f32[64, 8], %k: f32[65, 8], %v: f32[65, 4]"
SCORES = '%x = dot(%q, %k) {rule="m d, k d -> m k"} : f32[64, 65]\n'
WEIGHTS = (
    SCORES + '%m = reduce(%x) {axes=[1], kind="max"} : f32[64]\n'
    "%b = broadcast(%m) {axes=[0]} : f32[64, 65]\n%d = sub(%x, %b) : f32[64, 65]\n"
    '%e = exp(%d) : f32[64, 65]\n%l = reduce(%e) {axes=[1], kind="sum"} : f32[64]\n'
    "%c = broadcast(%l) {axes=[0]} : f32[64, 65]\n%p = div(%e, %c) : f32[64, 65]\n"
)
POOLED = WEIGHTS + '%z = dot(%p, %v) {rule="m k, k n -> m n"} : f32[64, 4]'

REWRITES: Rewrites = {
    "sum of exp(x - max)": (
        X,
        AWAY + '%z = reduce(%e) {axes=[1], kind="sum"} : f32[3]',
        """%z = stream(%x) {name="max_sum"} : f32[3] {(%p0: f32[3, 9])
    %m = reduce(%p0) {axes=[1], kind="max"} : f32[3]
    %a = abs(%m) : f32[3]
    %i = eq(%a, inf:f32) : bool[3]
    %r = select(%i, 0.0:f32, %m) : f32[3]
    %b = broadcast(%r) {axes=[0]} : f32[3, 9]
    %d = sub(%p0, %b) : f32[3, 9]
    %e = exp(%d) : f32[3, 9]
    %z = reduce(%e) {axes=[1], kind="sum"} : f32[3]
    return %m, %z
  } {(%old0: f32[3], %old1: f32[3], %new0: f32[3], %new1: f32[3])
    %a = abs(%new0) : f32[3]
    %i = eq(%a, inf:f32) : bool[3]
    %r = select(%i, 0.0:f32, %new0) : f32[3]
    %d = sub(%old0, %r) : f32[3]
    %e = exp(%d) : f32[3]
    %z = mul(%old1, %e) : f32[3]
    return %old0, %z
  } {(%s0: f32[3], %s1: f32[3], %p0: f32[3, 9])
    %a = abs(%s0) : f32[3]
    %i = eq(%a, inf:f32) : bool[3]
    %z = select(%i, nan:f32, %s1) : f32[3]
    return %z
  } : f32[3]""",
    ),
}
# a table of 12 x 3 x 9 computed from one of 3 x 9 and rows
DECAYS = "%s: f32[3, 9], %a: f32[12, 3], %v: f32[12, 9, 4]"
DECAYED = (
    "%b = broadcast(%s) {axes=[1, 2]} : f32[12, 3, 9]\n"
    "%r = broadcast(%a) {axes=[0, 1]} : f32[12, 3, 9]\n%e = exp(%r) : f32[12, 3, 9]\n"
    "%t = mul(%b, %e) : f32[12, 3, 9]\n"
)
POOLED_DECAYS = '%z = dot(%t, %v) {rule="h m k, h k n -> h m n"} : f32[12, 3, 4]'
TIES = MAX + "%b = broadcast(%m) {axes=[0]} : f32[3, 9]\n%q = eq(%x, %b) : bool[3, 9]\n"
COUNT = '%e = cast(%q) : f32[3, 9]\n%z = reduce(%e) {axes=[1], kind="sum"} : f32[3]'
REWRITES["a count of ties"] = (
    X,
    TIES + COUNT,
    """%z = stream(%x) {name="max_sum"} : f32[3] {(%p0: f32[3, 9])
    %m = reduce(%p0) {axes=[1], kind="max"} : f32[3]
    %b = broadcast(%m) {axes=[0]} : f32[3, 9]
    %q = eq(%p0, %b) : bool[3, 9]
    %e = cast(%q) : f32[3, 9]
    %z = reduce(%e) {axes=[1], kind="sum"} : f32[3]
    return %m, %z
  } {(%old0: f32[3], %old1: f32[3], %new0: f32[3], %new1: f32[3])
    %q = eq(%old0, %new0) : bool[3]
    %e = cast(%q) : f32[3]
    %z = mul(%old1, %e) : f32[3]
    return %old0, %z
  } {(%s0: f32[3], %s1: f32[3], %p0: f32[3, 9])
    return %s1
  } : f32[3]""",
)
KEPT: Kept = {
    "a product of a table computed from as many elements": (
        DECAYS.replace("%a: f32[12, 3]", "%a: f32[12, 3, 9]"),
        DECAYED.replace("broadcast(%a) {axes=[0, 1]}", "neg(%a)") + POOLED_DECAYS,
    ),
    "a table that is too wide": (
        DECAYS.replace("9, 4]", "9, 300]"),
        DECAYED + POOLED_DECAYS.replace("3, 4]", "3, 300]"),
    ),
    "ties with the max of another array": (
        "%x: f32[3, 9], %y: f32[3, 9]",
        TIES.replace("eq(%x,", "eq(%y,") + COUNT,
    ),
    "elements that are not the max": (X, TIES.replace("eq(", "ne(") + COUNT),
    "ties with a mean": (X, MEAN + "%q = eq(%x, %b) : bool[3, 9]\n" + COUNT),
    "ties of what a rounding makes equal": (
        X,
        "%y = exp(%x) : f32[3, 9]\n%h = cast(%y) : bf16[3, 9]\n"
        '%m = reduce(%h) {axes=[1], kind="max"} : bf16[3]\n'
        "%b = broadcast(%m) {axes=[0]} : bf16[3, 9]\n%q = eq(%h, %b) : bool[3, 9]\n" + COUNT,
    ),
    "one reduction": (X, '%z = reduce(%x) {axes=[1], kind="sum"} : f32[3]'),
    "a plain dot": (SV, '%z = dot(%s, %v) {rule="m k, k n -> m n"} : f32[3, 4]'),
    "a dot of a prologue": (
        SV,
        '%e = exp(%s) : f32[3, 9]\n%z = dot(%e, %v) {rule="m k, k n -> m n"} : f32[3, 4]',
    ),
    "exp of a mean is not bounded": (
        X,
        MEAN + '%e = exp(%d) : f32[3, 9]\n%z = reduce(%e) {axes=[1], kind="sum"} : f32[3]',
    ),
    "exp that grows with the max": (
        X,
        MAX + "%b = broadcast(%m) {axes=[0]} : f32[3, 9]\n%d = add(%x, %b) : f32[3, 9]\n"
        '%e = exp(%d) : f32[3, 9]\n%z = reduce(%e) {axes=[1], kind="sum"} : f32[3]',
    ),
    "rounding by a scale": (
        X,
        MAX + "%b = broadcast(%m) {axes=[0]} : f32[3, 9]\n%d = div(%x, %b) : f32[3, 9]\n"
        '%e = round(%d) : f32[3, 9]\n%z = reduce(%e) {axes=[1], kind="sum"} : f32[3]',
    ),
    "a threshold": (
        X,
        MAX + "%b = broadcast(%m) {axes=[0]} : f32[3, 9]\n%d = lt(%x, %b) : bool[3, 9]\n"
        "%e = select(%d, %x, 0.0:f32) : f32[3, 9]\n"
        '%z = reduce(%e) {axes=[1], kind="sum"} : f32[3]',
    ),
    "squares about what is no mean": (
        X,
        MEAN.replace("div(%t, 9.0:f32)", "exp(%t)")
        + "%e = mul(%d, %d) : f32[3, 9]\n"
        + '%z = reduce(%e) {axes=[1], kind="sum"} : f32[3]',
    ),
    "a max of what changes in scale": (
        X,
        MEAN + "%w = mul(%d, %b) : f32[3, 9]\n%z = reduce(%w) {axes=[1], kind=\"max\"} : f32[3]",
    ),
}  # fmt: skip


def test_a_table_of_what_changes_is_not_read() -> None:
    """A gather across the axis of a value that a state is in."""
    text = (
        "func @main(%x: f32[17, 15], %i: i64[15, 17]) -> (f32[17]) at tensor {\n"
        '  %m = reduce(%x) {axes=[1], kind="max"} : f32[17]\n'
        "  %b = broadcast(%m) {axes=[0]} : f32[17, 15]\n"
        "  %d = sub(%x, %b) : f32[17, 15]\n"
        '  %g = gather(%d, %i) {rule="a! b, b p -> p b"} : f32[17, 15]\n'
        '  %z = reduce(%g) {axes=[1], kind="sum"} : f32[17]\n  return %z\n}\n'
    )
    result, notes = streamed(parse(text))
    assert not any(n.op == "gather" for s in streams(result) for n in s.blocks[0].nodes)
    assert any("'gather' of a value that an earlier reduction changes" in n for n in notes), notes


@pytest.mark.parametrize("name", REWRITES)
def test_rewrites(name: str) -> None:
    params, before, after = REWRITES[name]
    # the last line of the expected text closes the blocks: it is one statement
    want = parse(
        f"func @main({params}) -> (f32[3]) at tensor {{\n  {after.removesuffix(' : f32[3]')}\n"
        "  return %z\n}\n"
    )
    result = Pipeline(ALL).run(func(params, before), check=True).func
    (got,), (expected,) = streams(result), streams(want)
    for mine, other in zip(got.blocks, expected.blocks, strict=True):
        assert mine.results == other.results, f"{result}\n{want}"
    assert Pipeline(ALL).run(result).func is result


@pytest.mark.parametrize("name", KEPT)
def test_near_misses(name: str) -> None:
    check_kept(ALL, KEPT[name])


def test_reductions_over_other_axes_are_no_states() -> None:
    before = func(
        "%x: f32[9, 9]",
        '%m = reduce(%x) {axes=[0], kind="max"} : f32[9]\n'
        "%b = broadcast(%m) {axes=[1]} : f32[9, 9]\n%d = sub(%x, %b) : f32[9, 9]\n"
        '%e = exp(%d) : f32[9, 9]\n%z = reduce(%e) {axes=[1], kind="sum"} : f32[9]',
    )
    result, _ = streamed(before)
    assert all(len(s.blocks[0].results) == 1 for s in streams(result))


def test_a_table_that_is_made_of_less_is_not_kept() -> None:
    """A lone product streams where its operand has many times the elements of what it is of."""
    result, notes = streamed(func(DECAYS, DECAYED + POOLED_DECAYS), "min_axis=100")
    (stream,) = streams(result)
    assert [s.op for s in stream.blocks[0].results] == ["dot"], notes
    assert set(stream.args) == set(result.params)


def test_a_table_that_something_else_reads_is_kept() -> None:
    lines = DECAYED + POOLED_DECAYS + '\n%w = reduce(%t) {axes=[1], kind="sum"} : f32[12, 9]'
    text = "".join(f"  {line}\n" for line in lines.splitlines())
    head = f"func @main({DECAYS}) -> (f32[12, 3, 4], f32[12, 9]) at tensor {{\n"
    before = parse(f"{head}{text}  return %z, %w\n}}\n")
    assert streamed(before, "min_axis=100")[0] is before


def test_weights_that_are_returned_stay() -> None:
    """A value as long as the axis is needed elsewhere: the reason is given."""
    text = (
        f"func @main({TABLE}) -> (f32[64, 4], f32[64, 65]) at tensor {{\n"
        + "".join(f"  {line}\n" for line in POOLED.splitlines())
        + "  return %z, %p\n}\n"
    )
    result, notes = streamed(parse(text), "min_axis=4096")
    assert not streams(result)
    why = "%p is as long as the axis, and other values need all of it again"
    assert any(why in n for n in notes), notes


def test_scores_that_are_returned_are_read_from_memory(rng: np.random.Generator) -> None:
    text = (
        f"func @main({TABLE}) -> (f32[64, 4], f32[64, 65]) at tensor {{\n"
        + "".join(f"  {line}\n" for line in POOLED.splitlines())
        + "  return %z, %x\n}\n"
    )
    before = parse(text)
    result, _ = streamed(before)
    (stream,) = streams(result)
    assert [n.op for n in stream.args].count("dot") == 1
    arrays = [rng.standard_normal(p.shape).astype(np.float32) for p in before.params]
    check_tiles(result, arrays, before.interpret(*arrays), 1e-5)


@pytest.mark.parametrize("registers", [1 << 15, 1 << 16])
def test_sums_take_half_of_the_registers(registers: int) -> None:
    """In blocks of 128 rows."""
    gpu, most = replace(as_gpu(load("sm_90")), registers=registers), registers // 256
    for columns in (most, most + 1):
        text = POOLED.replace(", 4]", f", {columns}]")
        before = func(TABLE.replace("65, 4", f"65, {columns}"), text)
        done = Pipeline("stream{loops=blocks}").run(before, verbose=True, target=gpu)
        assert bool(streams(done.func)) == (columns == most)
    notes = [note for record in done.records for note in record.notes]
    assert any(f"sums take more than half of {registers} registers" in n for n in notes), notes


@pytest.mark.parametrize(("held", "rows"), [(1 << 20, 8), (1 << 16, 4), (1 << 14, 1), (1 << 13, 0)])
def test_sums_stay_in_the_cache_of_a_core(held: int, rows: int) -> None:
    """4,096 columns of f32 are 16 KiB for each row; sums of 8 rows are two vectors of four."""
    before = func(TABLE.replace("65, 4", "65, 4096"), POOLED.replace(", 4]", ", 4096]"))
    (stream,) = streams(streamed(before)[0])
    cpu = replace(as_cpu(load("generic")), cache_bytes=held)
    if not rows:
        with pytest.raises(CannotTile, match="4096 columns of sums are more than 8192 bytes"):
            _ = CpuStreams(stream, cpu).domain
        return
    assert CpuStreams(stream, cpu).complete(Schedule()).block("m") == rows


def test_a_chain_of_dots_is_one_pass_where_that_saves_bytes() -> None:
    chain = SCORES + (
        "%p = sigmoid(%x) : f32[64, 65]\n"
        '%z = dot(%p, %v) {rule="m k, k n -> m n"} : f32[64, 4]'
    )  # fmt: skip
    (stream,) = streams(streamed(func(TABLE, chain))[0])
    assert len(stream.blocks[0].results) == 1
    wide = chain.replace("64", "7").replace("65", "8")
    small = func(TABLE.replace("64", "7").replace("65", "8"), wide)
    assert streamed(small)[0] is small


def test_the_derivation_is_told() -> None:
    _, notes = streamed(func(TABLE, POOLED))
    (note,) = notes
    lines = [line.strip() for line in note.splitlines()]
    assert lines[0] == "%z is streamed over an axis of 65"
    assert "s2 = sum_k exp(x - s0) v" in lines
    assert "z = s2 / s1" in lines
    assert "s2: F = exp(x - s0) v, A = exp(r - r') with r = s0" in lines


def test_variance_carries_sum_count_and_squares() -> None:
    text = MEAN + (
        '%e = mul(%d, %d) : f32[3, 9]\n%z = reduce(%e) {axes=[1], kind="sum"} : f32[3]'
    )  # fmt: skip
    result, notes = streamed(func(X, text))
    (stream,) = streams(result)
    assert len(stream.blocks[0].results) == 3
    assert "binomial of degree 2 in (r - r') with r = s0/count" in notes[0]


def test_no_fuel_no_stream() -> None:
    before = func(TABLE, POOLED)
    log = Log(fuel=Fuel(0))
    assert Stream().run(before, log) is before
    log = Log(fuel=Fuel(1))
    assert streams(Stream().run(before, log))
    assert log.by_rule == {"stream": 1}


def test_layers_share_their_blocks() -> None:
    """Equal streams have equal blocks, so that they are compiled once."""
    second = POOLED
    for name in "xmbdelcp":
        second = second.replace(f"%{name} ", f"%{name}2 ").replace(f"%{name})", f"%{name}2)")
        second = second.replace(f"%{name},", f"%{name}2,")
    second = second.replace("dot(%q,", "dot(%w,").replace("%z =", "%z2 =")
    params = TABLE + ", %w: f32[64, 8]"
    body = "".join(f"  {line}\n" for line in [*POOLED.splitlines(), *second.splitlines()])
    text = f"func @main({params}) -> (f32[64, 4], f32[64, 4]) at tensor {{\n{body}"
    result, _ = streamed(parse(text + "  return %z, %z2\n}\n"))
    first, other = streams(result)
    assert [b.results for b in first.blocks] == [b.results for b in other.blocks]
    verify(result)


def test_sizes_may_be_symbols() -> None:
    text = f"func @main({TABLE}) -> (f32[64, 4]) at tensor {{\n" + "".join(
        f"  {line}\n" for line in POOLED.splitlines()
    )
    text = (text + "  return %z\n}\n").replace("64", "m").replace("65", "n")
    before = parse(text.replace("@main", "@main<m in 1.., n in 1..>", 1))
    result = Pipeline("stream").run(before, check=True).func
    assert streams(result)
    assert parse(str(result)) is result


@pytest.mark.parametrize("seed", range(60))
def test_random_programs(seed: int) -> None:
    run_random(seed)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(10))
def test_many_random_programs(part: int) -> None:
    for seed in range(1000 + part * 300, 1300 + part * 300):
        run_random(seed)


def run_random(seed: int) -> None:
    program = random_program(seed)
    func = Pipeline("canonicalize,stream{min_axis=1}").run(program.func).func
    assert parse(str(func)) is func
    wrong = program.compare(func.interpret(*program.inputs))
    assert not wrong, f"{wrong}\n{program.func}\n{func}"
    if streams(func):
        found = run_in_tiles(func, program.inputs, 2, 2)
        wrong = program.compare(tuple(found) if len(found) > 1 else found[0])
        assert not wrong, f"{wrong}\n{program.func}\n{func}"


def test_random_tiles_and_parts(rng: np.random.Generator) -> None:
    before = func(TABLE, POOLED)
    result, _ = streamed(before)
    arrays = [rng.standard_normal(p.shape).astype(np.float32) for p in before.params]
    want = before.interpret(*arrays)
    for _ in range(10):
        tile, parts = (int(n) for n in rng.integers(1, 70, 2))
        (got,) = run_in_tiles(result, arrays, tile, parts)
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5, err_msg=f"{tile}, {parts}")


def centred(row: str) -> str:
    """Weights times (h - r), multiplied out, as the gradient of a softmax is."""
    return (
        WEIGHTS + '%h = dot(%g, %v) {rule="m n, k n -> m k"} : f32[64, 65]\n'
        f"%t = mul(%p, %h) : f32[64, 65]\n{row}"
        "%o = broadcast(%r) {axes=[0]} : f32[64, 65]\n%w = mul(%p, %o) : f32[64, 65]\n"
        "%u = sub(%t, %w) : f32[64, 65]\n"
        '%z = dot(%u, %k) {rule="m k, k d -> m d"} : f32[64, 8]'
    )


MEAN_OF_H = '%r = reduce(%t) {axes=[1], kind="sum"} : f32[64]\n'


def test_what_is_multiplied_out_cancels_in_each_element(rng: np.random.Generator) -> None:
    """One large score: h - r is near 0 there, and the sums of p h and of p r are not."""
    made, notes = streamed(func(TABLE + ", %g: f32[64, 4]", centred(MEAN_OF_H)))
    assert len(streams(made)) == 1
    states = [line.strip() for line in notes[0].splitlines()]
    assert "s4 = sum_k exp(x - s0) (h - (s2 / s1)) k" in states, notes[0]
    assert states[-1].endswith("binomial of degree 1 in (r - r') with r = (s2 / s1)")
    q, k, v, g = (rng.standard_normal((n, d)).astype(np.float32) for n, d in SIZES)
    q *= 30
    exact, narrow = (_gradient(*(a.astype(t) for a in (q, k, v, g))) for t in ("f8", "f4"))
    for tile in (7, 65):
        (found,) = run_in_tiles(made, [q, k, v, g], tile)
        assert np.abs(found - exact).max() <= 2 * np.abs(narrow - exact).max()


SIZES = [(64, 8), (65, 8), (65, 4), (64, 4)]


def _gradient(q: np.ndarray, k: np.ndarray, v: np.ndarray, g: np.ndarray) -> np.ndarray:
    x, h = q @ k.T, g @ v.T
    p = np.exp(x - x.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    return (p * (h - (p * h).sum(1, keepdims=True))) @ k


def test_a_difference_of_what_no_state_changes_is_one_factor(rng: np.random.Generator) -> None:
    text = centred("")
    made, notes = streamed(func(TABLE + ", %g: f32[64, 4], %r: f32[64]", text))
    assert "s2 = sum_k exp(x - s0) (h - o) k" in [n.strip() for n in notes[0].splitlines()], notes
    q, k, v, g = (rng.standard_normal((n, d)).astype(np.float32) for n, d in SIZES)
    r = rng.standard_normal(64).astype(np.float32)
    x = q @ k.T
    p = np.exp(x - x.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    check_tiles(made, [q, k, v, g, r], [(p * (g @ v.T - r[:, None])) @ k], 2e-5)


def test_a_row_that_follows_nothing_is_not_multiplied_in() -> None:
    """The largest times a sum is no mean: the differences would be of large numbers."""
    row = "%r = mul(%m, %l) : f32[64]\n"
    made, notes = streamed(func(TABLE + ", %g: f32[64, 4]", centred(row)))
    assert any("is no running max, min or mean" in n for n in notes), notes
    assert all("exp(x - s0) k" not in n for n in notes)
    verify(made)


def test_streams_of_equal_layers_are_priced_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Node] = []

    def priced(stream: Node, cpu: Cpu) -> price.Price:
        asked.append(stream)
        return price.Price(1, 2)

    monkeypatch.setattr(price, "cpu_price", priced)
    price._choose.cache_clear()
    try:
        b, v = Builder(), param("v", tensor("f32", 65, 4))
        pools: list[Node] = []
        for layer in range(3):
            q, k = (
                param(f"q{layer}", tensor("f32", 64, 8)),
                param(f"k{layer}", tensor("f32", 65, 8)),
            )
            scores = b.dot(q, k, rule="m d, k d -> m k", named=f"scores{layer}")
            top = b.reduce(scores, kind="max", axes=(1,))
            away = b.exp(b.sub(scores, b.broadcast(top, axes=(0,), type=scores.type)))
            total = b.reduce(away, kind="sum", axes=(1,), named=f"total{layer}")
            weights = b.div(away, b.broadcast(total, axes=(0,), type=scores.type))
            pools.append(b.dot(weights, v, rule="m k, k n -> m n", named=f"pool{layer}"))
        params = [n for n in topological(pools) if n.op == "param"]
        made, notes = streamed(b.func("f", params, pools), "loops=cpu")
    finally:
        price._choose.cache_clear()  # of what was no price
    assert len(streams(made)) == 3
    assert len(asked) == 1
    assert [f"%pool{i} is streamed" in " ".join(notes) for i in range(3)] == [True] * 3
