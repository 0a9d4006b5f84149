from __future__ import annotations

from typing import Any

import numpy as np

import stack.mini as mini
from stack.demos.course.answers import ask, show


def check_gradient(student: Any) -> None:
    """softplus_gradient agrees with differences in double precision

    Hint: multiply g by 1 / (1 + exp(-x)), where x is node.args[0]. mini.const(1.0) makes a number.
    exp(x) / (1 + exp(x)) is nan where exp(x) is infinite.
    """
    forward = lambda x: np.log1p(np.exp(x))
    record = mini.elementwise(forward, "log1pf(expf({0}))", student.softplus_gradient)
    at = np.array([-3.0, -1.5, 0.0, 1.5, 3.0, 1000.0])

    def gradient() -> np.ndarray:
        """The gradient of sum(3 softplus(x)), so that `g` is 3 and not 1."""
        x = mini.param(mini.Type("f32", at.shape), "x")
        scaled = mini.make("mul", mini.make("softplus", x), mini.const(3.0))
        total = mini.make("reduce", scaled, axes=(0,), kind="sum")
        return mini.grad(mini.Func("f", (x,), (total,))).interpret(at)[1]

    before = mini.OPS.get("softplus")
    mini.OPS["softplus"] = record
    try:
        with np.errstate(over="ignore", invalid="ignore"):
            wanted = 3 * (forward(at + 1e-6) - forward(at - 1e-6)) / 2e-6
            wanted[-1] = 3  # the limit, where exp overflows
            given = f"gradient of sum(3 softplus(x)), so that g is 3, at x = {show(at)}"
            ask(lambda: gradient(), given=given).equals(wanted, rtol=1e-5)
    finally:
        del mini.OPS["softplus"]
        if before is not None:
            mini.OPS["softplus"] = before


def check_kept(student: Any) -> None:
    """is_kept: a product is kept, a cheap elementwise op is computed again

    Hint: a kept value is written once and read once: its bytes travel twice.
    """
    for size, flops, peak, rate in (
        (65536, 134217728, 1e12, 1e11),
        (65536, 49152, 1e12, 1e11),
        (1e6, 1.5e7, 1e12, 1e11),  # one way takes 10 us, both 20 us; computing again 15 us
        (1e6, 2.5e7, 1e12, 1e11),
    ):
        wanted = 2 * size / rate < flops / peak
        given = f"{size=:g}, {flops=:g}, {peak=:g}, {rate=:g}"
        ask(student.is_kept, size, flops, peak, rate, given=given).equals(wanted)


def check_segment(student: Any) -> None:
    """best_segment is the divisor near the square root of the number of layers

    Hint: s must divide `layers`: try each s from 1 to layers with layers % s == 0.
    """
    for layers in (1, 16, 36, 7, 12, 26):
        cost = {s: layers / s + s for s in range(1, layers + 1) if layers % s == 0}
        best = [s for s in cost if cost[s] == min(cost.values())]
        question = ask(student.best_segment, layers)
        expected = " or ".join(map(str, best))
        found = question.answer(expected)
        if found not in best:
            raise question.wrong(expected, found)
