"""mix_order: groups that reduce along and across the same lines become one, and its kernel."""

from __future__ import annotations

import re

import numpy as np
import pytest
from gpu_cases import assert_near
from kernel_cases import program

from stack.ir import Builder, Func, Node, param, parse, tensor, verify
from stack.ir.data import round_bf16
from stack.passes.policies.mix_order import MixOrderLowering, space_of
from stack.rewrite import Pipeline
from stack.target import as_gpu

BEFORE = """func @main(%x: f32[8, 6], %d: f32[8, 6]) -> (f32[8, 6], f32[2, 6]) at tensor {
  %y = fusion(%x, %d) {kind="reduction", name="rows"} : f32[8, 6] {(%p0: A, %p1: A)
    %m = mul(%p0, %p1) : f32[8, 6]
    %s = reduce(%m) {axes=[1], kind="sum"} : f32[8]
    %b = broadcast(%s) {axes=[0]} : f32[8, 6]
    %y = mul(%b, %p0) : f32[8, 6]
    return %y
  }
  %v = reshape(%d) : f32[2, 4, 6]
  %c = fusion(%v, %x) {kind="reduction", name="columns"} : f32[2, 6] {(%p0: f32[2, 4, 6], %p1: A)
    %q = reshape(%p1) : f32[2, 4, 6]
    %m = mul(%p0, %q) : f32[2, 4, 6]
    %c = reduce(%m) {axes=[1], kind="sum"} : f32[2, 6]
    return %c
  }
  return %y, %c
}
""".replace("A", "f32[8, 6]")
EXPECTED = """func @main(%x: f32[8, 6], %d: f32[8, 6]) -> (f32[8, 6], f32[2, 6]) at tensor {
  %fusion = fusion(%x, %d) {kind="reduction", name="rows"} : (A, f32[2, 6]) {(%p0: A, %p1: A)
    %m = mul(%p0, %p1) : f32[8, 6]
    %s = reduce(%m) {axes=[1], kind="sum"} : f32[8]
    %b = broadcast(%s) {axes=[0]} : f32[8, 6]
    %y = mul(%b, %p0) : f32[8, 6]
    %reshape = reshape(%p1) : f32[2, 4, 6]
    %q = reshape(%p0) : f32[2, 4, 6]
    %m_1 = mul(%reshape, %q) : f32[2, 4, 6]
    %c = reduce(%m_1) {axes=[1], kind="sum"} : f32[2, 6]
    return %y, %c
  }
  %y = item(%fusion) {index=0} : f32[8, 6]
  %c = item(%fusion) {index=1} : f32[2, 6]
  return %y, %c
}
""".replace("A", "f32[8, 6]")


def test_rows_and_columns_are_joined() -> None:
    result = Pipeline("mix_order{min_programs=1}").run(parse(BEFORE), check=True)
    assert str(result.func) == EXPECTED
    assert result.records[0].by_rule == {"mix_order": 1}
    assert result.records[0].notes == ("%y and %c are one mix-order reduction",)
    assert Pipeline("mix_order{min_programs=1}").run(result.func).func is result.func


def test_other_lines_stay_apart() -> None:
    text = BEFORE.replace("(%x: f32[8, 6], %d: f32[8, 6])", "(%x: f32[8, 6], %d: f32[8, 6], "
                          "%x2: f32[8, 6], %o: f32[2, 4, 6])")  # fmt: skip
    text = text.replace("fusion(%v, %x)", "fusion(%o, %x2)").replace(
        "  %v = reshape(%d) : f32[2, 4, 6]\n", ""
    )
    func = parse(text)
    assert Pipeline("mix_order{min_programs=1}").run(func).func is func


def test_a_path_through_another_step_keeps_them_apart() -> None:
    """The columns read the sorted rows: one kernel would wait for itself."""
    text = BEFORE.replace(
        "  %v = reshape(%d) : f32[2, 4, 6]\n",
        "  %t = dot(%y, %d) {rule=\"a k, b k -> a b\"} : f32[8, 8]\n"
        "  %u = slice(%t) {limit=[8, 6], start=[0, 0], step=[1, 1]} : f32[8, 6]\n"
        "  %v = reshape(%u) : f32[2, 4, 6]\n",
    )  # fmt: skip
    func = parse(text)
    assert Pipeline("mix_order{min_programs=1}").run(func, check=True).func is func


def test_lines_that_do_not_fit_the_registers_stay_apart() -> None:
    func = parse(re.sub(r"\b6\]", "20000]", BEFORE))
    assert Pipeline("mix_order{min_programs=1}").run(func).func is func


def test_a_walk_in_few_programs_is_no_gain() -> None:
    assert Pipeline("mix_order").run(parse(BEFORE)).func is parse(BEFORE)


def test_what_is_read_between_the_two_is_no_output() -> None:
    """The columns sum what the rows make; nothing else needs it."""
    text = BEFORE.replace("reshape(%d)", "reshape(%y)").replace("return %y, %c\n}", "return %c\n}")
    text = text.replace("-> (f32[8, 6], f32[2, 6]) at", "-> (f32[2, 6]) at")
    func = Pipeline("mix_order{min_programs=1}").run(parse(text), check=True).func
    (group,) = [n for n in func.nodes if n.op == "fusion"]
    assert str(group.type) == "f32[2, 6]"
    assert space_of(group.blocks[0], as_gpu(None)) is not None


PASSED = """func @main(%x: A, %d: A) -> (A, f32[2, 20000]) at tensor {
  %f = fusion(%x, %d) {kind="reduction", name="columns"} : (W, f32[2, 20000]) {(%p0: A, %p1: A)
    %u = cast(%p0) : W
    %v = cast(%p1) : W
    %m = mul(%u, %v) : W
    %q = reshape(%m) : f32[2, 4, 20000]
    %c = reduce(%q) {axes=[1], kind="sum"} : f32[2, 20000]
    return %m, %c
  }
  %m = item(%f) {index=0} : W
  %c = item(%f) {index=1} : f32[2, 20000]
  %y = fusion(%m, %x) {kind="reduction", name="rows"} : A {(%p0: W, %p1: A)
    %s = reduce(%p0) {axes=[1], kind="sum"} : f32[8]
    %b = broadcast(%s) {axes=[0]} : W
    %t = cast(%p1) : W
    %w = mul(%b, %t) : W
    %y = cast(%w) : A
    return %y
  }
  return %y, %c
}
""".replace("A", "bf16[8, 20000]").replace("W", "f32[8, 20000]")


def test_what_long_lines_pass_on_is_computed_twice() -> None:
    result = Pipeline("mix_order{min_programs=1}").run(parse(PASSED), check=True)
    assert result.records[0].by_rule == {"mix_order_unfused": 1}
    groups = [n for n in result.func.nodes if n.op == "fusion"]
    assert [str(g.type) for g in groups] == ["bf16[8, 20000]", "f32[2, 20000]"]
    assert all(a.op == "param" for g in groups for a in g.args)
    assert Pipeline("mix_order{min_programs=1}").run(result.func).func is result.func


def test_what_is_returned_too_is_passed_on() -> None:
    text = PASSED.replace("return %y, %c\n}\n", "return %y, %c, %m\n}\n")
    text = text.replace(
        "(bf16[8, 20000], f32[2, 20000]) at", "(bf16[8, 20000], f32[2, 20000], f32[8, 20000]) at"
    )
    func = parse(text)
    assert Pipeline("mix_order{min_programs=1}").run(func).func is func


def test_a_slice_of_the_lines_is_another_space() -> None:
    """A sum over some of the lines: a walk over those would leave out the others."""
    text = (
        BEFORE.replace(
            "    %q = reshape(%p1) : f32[2, 4, 6]\n    %m = mul(%p0, %q) : f32[2, 4, 6]\n"
            "    %c = reduce(%m) {axes=[1]",
            "    %m = slice(%p1) {limit=[8, 6], start=[6, 0], step=[1, 1]} : f32[2, 6]\n"
            "    %c = reduce(%m) {axes=[0]",
        )
        .replace("f32[2, 6])", "f32[6])")
        .replace("f32[2, 6] {(", "f32[6] {(")
    )
    text = text.replace('kind="sum"} : f32[2, 6]', 'kind="sum"} : f32[6]')
    func = parse(text)
    after = Pipeline("mix_order{min_programs=1}").run(func).func
    assert after is func
    x = np.arange(48, dtype=np.float32).reshape(8, 6)
    lowered = Pipeline("mix_order{min_programs=1},blocks,library").run(func).func
    for got, want in zip(lowered.interpret(x, x), func.interpret(x, x), strict=True):
        np.testing.assert_array_equal(got, want)


# ---- values


def norm_gradients(m: int, n: int, dtype: str, parts: int) -> Func:
    """Gradients of x / rms(x) * gain, with another array that is summed over rows."""
    x, d = param("x", tensor(dtype, m, n)), param("d", tensor(dtype, m, n))
    gain = param("gain", tensor("f32", n))
    b = Builder()
    shape = tensor("f32", m, n)
    y, g = (b.cast(v, type=shape) if dtype != "f32" else v for v in (x, d))
    total = b.reduce(b.mul(y, y), kind="sum", axes=(1,))
    scale = b.broadcast(b.rsqrt(b.add(b.div(total, float(n)), 1e-5)), axes=(0,), type=shape)
    h = b.mul(y, scale)
    dg = b.mul(g, b.broadcast(gain, axes=(1,), type=shape))
    mean = b.div(b.reduce(b.mul(dg, h), kind="sum", axes=(1,)), float(n))
    dx = b.mul(b.sub(dg, b.mul(h, b.broadcast(mean, axes=(0,), type=shape))), scale)
    out = b.cast(dx, type=x.tensor) if dtype != "f32" else dx

    def across(value: Node, kind: str) -> Node:
        apart = b.reshape(value, type=tensor("f32", parts, m // parts, n))
        return b.reduce(b.reduce(apart, kind=kind, axes=(1,)), kind=kind, axes=(0,))

    gains, worst = across(b.mul(g, h), "sum"), across(g, "max")
    return b.func("main", [x, d, gain], [out, gains, worst])


def exact(x: np.ndarray, d: np.ndarray, gain: np.ndarray) -> tuple[np.ndarray, ...]:
    x, d, gain = (a.astype(np.float64) for a in (x, d, gain))
    with np.errstate(all="ignore"):
        scale = 1 / np.sqrt((x * x).mean(1, keepdims=True) + 1e-5)
        h, dg = x * scale, d * gain
        dx = (dg - h * (dg * h).mean(1, keepdims=True)) * scale
        return dx, (d * h).sum(0), d.max(0)


def lowered(func: Func) -> Func:
    func = Pipeline("fuse,mix_order{min_programs=1},blocks,library").run(func).func
    verify(func)
    assert parse(str(func)) is func
    assert not [n for n in func.nodes if n.op == "fusion"]
    return func


SHAPES = [(64, 33, 4), (60, 130, 3), (48, 257, 2), (330, 16, 2), (12, 1000, 3), (126, 5, 9)]


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize(("m", "n", "parts"), SHAPES)
def test_gradients(m: int, n: int, parts: int, dtype: str, rng: np.random.Generator) -> None:
    func = lowered(norm_gradients(m, n, dtype, parts))
    values = [rng.standard_normal(s).astype(np.float32) for s in ((m, n), (m, n), (n,))]
    if dtype == "bf16":
        values[:2] = [round_bf16(v) for v in values[:2]]
    found = func.interpret(*values)
    for got, want, kind in zip(found, exact(*values), (dtype, "f32", "f32"), strict=True):
        assert_near(np.asarray(got), want, kind)


def test_one_kernel_reads_each_line_once() -> None:
    func = lowered(norm_gradients(2048, 33, "bf16", 4))
    assert [n.op for n in func.nodes].count("kernel") == 3  # the walk, and two second stages
    text = str(program(next(n for n in func.nodes if n.op == "kernel")))
    assert text.count('kind="serial"') == 1
    assert len(re.findall(r" = load\(.*: bf16<", text)) == 2


def test_inf_and_nan_stay_in_their_lines(rng: np.random.Generator) -> None:
    m, n = 24, 37
    x, d = (rng.standard_normal((m, n)).astype(np.float32) for _ in range(2))
    x[3, 4], d[23, 36], d[0, 0] = np.nan, np.inf, -np.inf
    gain = rng.standard_normal(n).astype(np.float32)
    found = [np.asarray(f) for f in lowered(norm_gradients(m, n, "f32", 3)).interpret(x, d, gain)]
    for got, want in zip(found, exact(x, d, gain), strict=True):
        np.testing.assert_array_equal(np.isfinite(got), np.isfinite(want))
        ok = np.isfinite(want)
        assert_near(got[ok], want[ok], "f32")


def shared_columns(m: int, n: int, parts: int) -> Node:
    """A value as large as the space, and its sum over rows: no reduction along lines."""
    x, d = param("p0", tensor("f32", m, n)), param("p1", tensor("f32", m, n))
    b = Builder()
    y = b.mul(x, b.tanh(d))
    apart = b.reshape(y, type=tensor("f32", parts, m // parts, n))
    body = b.block([x, d], [y, b.reduce(apart, kind="sum", axes=(1,))])
    return b.op("fusion", [x, d], {"kind": "reduction", "name": "f"}, (body,))


@pytest.mark.parametrize(("m", "n", "parts"), [(128, 300, 2), (7 * 33, 129, 7), (9, 5, 3)])
def test_blocks_of_lines(m: int, n: int, parts: int, rng: np.random.Generator) -> None:
    func = program(MixOrderLowering(shared_columns(m, n, parts), as_gpu(None)).kernel())
    verify(func)
    x, d = (rng.standard_normal((m, n)).astype(np.float32) for _ in range(2))
    want = x.astype(np.float64) * np.tanh(d.astype(np.float64))
    found = func.interpret(x, d)
    assert_near(np.asarray(found[0]), want, "f32")
    assert_near(np.asarray(found[1]), want.reshape(parts, m // parts, n).sum(1), "f32")
