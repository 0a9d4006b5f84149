"""Double precision references, timing and roofs."""

from __future__ import annotations

import itertools
import math
import time

import numpy as np
import pytest

import stack
from stack.errors import StackError
from stack.ir import Builder, constant, param, tensor
from stack.measure.reference import error_of, reference
from stack.measure.roofline import (
    Ceilings,
    floor_seconds,
    least_bytes,
    matmul_flops,
    memory_elements,
)
from stack.measure.timing import Interrupted, Timing, interleave, quantile, repeat, warm_up
from stack.rewrite.wide import widen

CEILINGS = Ceilings({"f32": 1e9, "bf16": 4e9}, {1 << 10: 1e10, 1 << 20: 1e9}, 1, "made up")


def test_widened_functions_hold_no_smaller_float() -> None:
    b = Builder()
    x = param("x", tensor("bf16", 4, 8))
    i = param("i", tensor("i32", 4))
    wide = b.cast(x, type=tensor("f32", 4, 8))
    body_x = param("p", tensor("f32", 4, 8))
    block = b.block([body_x], [b.exp(body_x)])
    group = b.fusion(wide, kind="loop", blocks=(block,))
    scaled = b.mul(group, constant(0.1, "f32"))
    func = b.func("f", [x, i], [b.cast(scaled, type=tensor("bf16", 4, 8)), i])
    text = str(widen(func))
    assert "f64[4, 8]" in text
    assert "i32[4]" in text
    assert "f32" not in text
    assert "bf16" not in text
    assert "cast(" not in text
    stack.verify(widen(func))


def test_the_reference_is_more_exact_than_the_program(rng: np.random.Generator) -> None:
    b = Builder()
    x = param("x", tensor("f32", 4096))
    func = b.func("f", [x], [b.reduce(b.mul(x, x), kind="sum", axes=(0,))])
    values = rng.standard_normal(4096, dtype=np.float32)
    (exact,) = reference(func, [values])
    wide = values.astype(np.float64)
    assert abs(float(exact) - float(wide @ wide)) < 1e-9
    found = np.asarray(func.interpret(values))
    assert 0 <= error_of([exact], [found], [func.results[0].tensor]) < 1e-5


def test_bf16_storage_is_read_as_bit_patterns() -> None:
    b = Builder()
    x = param("x", tensor("bf16", 2))
    func = b.func("f", [x], [b.add(x, x)])
    stored = np.array([0x3F80, 0x4000], dtype=np.uint16)  # 1, 2
    (exact,) = reference(func, [stored])
    assert exact.tolist() == [2.0, 4.0]
    doubled = np.array([0x4000, 0x4080], dtype=np.uint16)
    assert error_of([exact], [doubled], [x.tensor]) == 0


def test_programs_on_bits_have_no_reference() -> None:
    b = Builder()
    x = param("x", tensor("f32", 2))
    func = b.func("f", [x], [b.bitcast(x, type=tensor("u32", 2))])
    with pytest.raises(StackError, match="bitcast"):
        widen(func)


@pytest.mark.parametrize(
    ("want", "have", "error"),
    [
        ([1.0, 2.0], [1.0, 2.2], 0.1),
        ([math.inf, 1.0], [math.inf, 1.0], 0.0),
        ([math.nan, 1.0], [math.nan, 1.0], 0.0),
        ([math.nan, 1.0], [1.0, 1.0], math.inf),
        ([1.0, 1.0], [math.inf, 1.0], math.inf),
        ([1.0], [1.0, 1.0], math.inf),
    ],
)
def test_errors(want: list[float], have: list[float], error: float) -> None:
    found = error_of([np.array(want)], [np.array(have)], [tensor("f64", 2)])
    assert found == pytest.approx(error)


def test_quantiles_and_spread() -> None:
    timing = Timing((1.0, 2.0, 3.0, 4.0, 100.0))
    assert timing.median == 3.0
    assert timing.spread == 2.0
    assert math.isnan(quantile((), 0.5))
    assert quantile((5.0,), 0.25) == 5.0


def test_rounds_are_interleaved_and_start_with_another_system_each() -> None:
    order: list[str] = []

    def system(name: str):
        def run(count: int) -> float:
            order.append(name)
            return 0.01 * count

        return run

    found = interleave([system("a"), system("b"), system("c")], rounds=5, window=0.0, warm=0.0)
    # warm-up, then a call outside of the clock and the timed ones, for each
    rounds = ["".join(order[3 + 6 * i : 9 + 6 * i]) for i in range(5)]
    assert order[:3] == ["a", "b", "c"]
    assert rounds == ["aabbcc", "bbccaa", "ccaabb", "aabbcc", "bbccaa"]
    assert all(isinstance(t, Timing) and len(t.rounds) == 5 for t in found)


def test_a_system_that_fails_drops_out() -> None:
    calls = []

    def bad(count: int) -> float:
        calls.append(count)
        if len(calls) == 5:
            raise RuntimeError("gone")
        return 0.001

    good, failed = interleave([lambda n: 0.001 * n, bad], rounds=5, window=0.0, warm=0.0)
    assert isinstance(good, Timing)
    assert isinstance(failed, RuntimeError)
    assert len(calls) == 5


def test_an_interrupt_keeps_the_rounds_so_far() -> None:
    calls = itertools.count()

    def first(count: int) -> float:
        return 0.01 * count

    def second(count: int) -> float:
        if next(calls) == 6:  # the warm-up, and two calls in each round
            raise KeyboardInterrupt
        return 0.02 * count

    with pytest.raises(Interrupted) as caught:
        interleave([first, second], rounds=5, window=0.0, warm=0.0)
    assert [len(t.rounds) for t in caught.value.timings if isinstance(t, Timing)] == [3, 2]
    with pytest.raises(KeyboardInterrupt) as early:
        interleave([_interrupt], rounds=5, window=0.0, warm=0.0)
    assert not isinstance(early.value, Interrupted)


def _interrupt(_: int) -> float:
    raise KeyboardInterrupt


def test_elements_of_memory() -> None:
    assert memory_elements((32, 64), (64, 1)) == memory_elements((64, 32), (1, 64)) == 32 * 64
    assert memory_elements((32, 32), (64, 2)) == 32 * 32  # every second column
    assert memory_elements((7, 32), (0, 2)) == 32  # one row for all
    assert memory_elements((57, 8), (1, 1)) == 64  # windows that overlap
    assert memory_elements((), ()) == memory_elements((1,), (0,)) == 1
    assert memory_elements((0, 64), (64, 1)) == 0


def test_quick_calls_are_repeated() -> None:
    assert warm_up(lambda n: 1e-4 * n, least=0, window=0.02) == 200
    assert repeat(lambda: time.sleep(0.01))(2) >= 0.02


def test_floors() -> None:
    b = Builder()
    x = param("x", tensor("f32", 32, 64))
    w = param("w", tensor("f32", 64, 16))
    unused = param("unused", tensor("f32", 1000))
    func = b.func("f", [x, w, unused], [b.dot(x, w, rule="m k, k n -> m n")])
    assert matmul_flops(func) == {"f32": 2 * 32 * 64 * 16}
    assert least_bytes(func) == 4 * (32 * 64 + 64 * 16 + 32 * 16)
    assert floor_seconds(func, CEILINGS) == pytest.approx(2 * 32 * 64 * 16 / 1e9)
    half = floor_seconds(func, CEILINGS, work=0.5)  # a mask leaves half of the sums
    assert half == pytest.approx(32 * 64 * 16 / 1e9)
    assert least_bytes(func, [4 * 64, 4 * 64 * 16, 0]) == 4 * (64 + 64 * 16 + 32 * 16)
    assert CEILINGS.bytes_at(4 << 20) == 1e9
    assert CEILINGS.bytes_at(1 << 12) == 1e10
    assert CEILINGS.bytes == 1e9


def test_the_bytes_of_rows_that_are_picked() -> None:
    b, table, at = Builder(), param("t", tensor("f32", 5000, 64)), param("i", tensor("i32", 32))
    rows = b.gather(table, at, rule="x0! w, b -> b w")
    assert least_bytes(b.func("f", [table, at], [rows])) == 4 * (32 + 2 * 32 * 64)
    both = b.func("f", [table, at], [rows, b.neg(table)])
    assert least_bytes(both) == 4 * (32 + 32 * 64 + 2 * 5000 * 64)
