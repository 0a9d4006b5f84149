"""roll: unrolled loops become loops again, with the same values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import stack
from stack.ir.func import Func
from stack.ir.parser import parse
from stack.rewrite.pipeline import Pipeline

torch = pytest.importorskip("torch")
STEPS = 12
RNG = np.random.default_rng(0)


def rolled(func: Func, least: int = 8) -> Func:
    passes = f"canonicalize,roll{{least={least}}},canonicalize"
    return Pipeline(passes).run(func, check=True).func


def loops(func: Func) -> list[int]:
    """The trip counts of the loops of a function."""
    tests = [n.blocks[0].results[0] for n in func.nodes if n.op == "while"]
    return [int(t.args[1].attrs["value"].array) for t in tests]


BEFORE = """
func @f(%x: f32[8, 9], %a: f32[8]) -> (f32[8]) at tensor {
{lines}
  return %h_9
}
"""

STATE = "(%step.0: i32[], %carry.1: f32[8], %fixed.2: f32[8, 9])"
EXPECTED = f"""
func @f(%x: f32[8, 9], %a: f32[8]) -> (f32[8]) at tensor {{
  %m_1 = tanh(%a) : f32[8]
  %s_1 = slice(%x) {{limit=[8, 1], start=[0, 0], step=[1, 1]}} : f32[8, 1]
  %x_1 = reshape(%s_1) : f32[8]
  %h_1 = add(%m_1, %x_1) : f32[8]
  %while = while(0:i32, %h_1, %x) : (i32[], f32[8], f32[8, 9]) {{{STATE}
    %lt = lt(%step.0, 8:i32) : bool[]
    return %lt
  }} {{{STATE}
    %add = add(%step.0, 1:i32) : i32[]
    %m_2 = tanh(%carry.1) : f32[8]
    %gather = gather(%fixed.2, %add) {{rule="w0 x1!,  -> w0"}} : f32[8]
    %h_2 = add(%m_2, %gather) : f32[8]
    return %add, %h_2, %fixed.2
  }}
  %h_9 = item(%while) {{index=1}} : f32[8]
  return %h_9
}}
"""


def chain(count: int, op: Callable[[int], str] = lambda t: "tanh") -> Func:
    lines: list[str] = []
    for t in range(count):
        before = f"%h_{t}" if t else "%a"
        lines += [
            f"  %m_{t + 1} = {op(t)}({before}) : f32[8]",
            f"  %s_{t + 1} = slice(%x) {{limit=[8, {t + 1}], start=[0, {t}], step=[1, 1]}}"
            " : f32[8, 1]",
            f"  %x_{t + 1} = reshape(%s_{t + 1}) : f32[8]",
            f"  %h_{t + 1} = add(%m_{t + 1}, %x_{t + 1}) : f32[8]",
        ]
    return parse(BEFORE.replace("{lines}", "\n".join(lines)))


def test_before_and_expected() -> None:
    assert rolled(chain(9)) is parse(EXPECTED)


def test_few_steps_stay() -> None:
    before = Pipeline("canonicalize").run(chain(9)).func
    assert rolled(chain(9), least=10) is before


def test_steps_that_differ_stay() -> None:
    # every third one is another function: no eight equal steps, but some of three
    func = chain(9, lambda t: "tanh" if t % 3 else "exp")
    assert not loops(rolled(func, least=4))
    assert loops(rolled(func, least=2))


def traced(fn: Callable[..., Any], *arrays: np.ndarray) -> Func:
    return stack.trace(fn, *map(torch.from_numpy, arrays))


X = RNG.standard_normal((4, STEPS, 3))
W, U = RNG.standard_normal((3, 5)), RNG.standard_normal((5, 5)) / 5


def cell(x: Any, w: Any, u: Any) -> Any:
    h, rows = x.new_zeros(4, 5), []
    for t in range(STEPS):
        h = torch.tanh(x[:, t] @ w + h @ u)
        rows.append(h * 2)
    return torch.stack(rows, 1), h


def backwards(x: Any, w: Any, u: Any) -> Any:
    h, rows = x.new_zeros(4, 5), []
    for t in reversed(range(STEPS)):
        h = torch.tanh(x[:, t] @ w + h @ u)
        rows.append(h)
    return torch.stack(rows[::-1], 1)


def fibonacci(x: Any, w: Any, u: Any) -> Any:
    first, second = x[0, 0], x[0, 1]
    for _ in range(STEPS):
        first, second = second, (first + second).sin()
    return second


def windows(x: Any, w: Any, u: Any) -> Any:
    total = x[:, :2] * 0
    for t in range(STEPS - 1):
        total = (total * 0.5 + x[:, t : t + 2]).tanh()
    return total


def some_rows(x: Any, w: Any, u: Any) -> Any:
    h, rows = x[:, 0], []
    for t in range(STEPS):
        h = (h + x[:, t]).sin()
        rows.append(h)
    return rows[2] + rows[5], torch.cat([rows[0], rows[1], rows[2], rows[11]])


def two_layers(x: Any, w: Any, u: Any) -> Any:
    h = c = x.new_zeros(4, 5)
    for t in range(STEPS):
        h = torch.tanh(x[:, t] @ w + h @ u)
        c = torch.sigmoid(h) * c + h
    return h, c


PROGRAMS = [cell, backwards, fibonacci, windows, some_rows, two_layers]


@pytest.mark.parametrize("program", PROGRAMS)
def test_values(program: Callable[..., Any]) -> None:
    func = traced(program, X, W, U)
    # the check of the pipeline compares each pass with the interpreter
    found = rolled(func)
    assert loops(found)
    assert len(found.nodes) < len(func.nodes) / 2
    want = program(*map(torch.from_numpy, (X, W, U)))
    for mine, theirs in zip(*map(_listed, (found.interpret(X, W, U), want)), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-12)


def _listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, tuple) else [value]


def test_steps_that_read_one_of_them_are_no_loop() -> None:
    """All later steps use the value of the first: it is none of theirs."""

    def anchored(x: Any) -> Any:
        first = h = x.sin()
        for _ in range(STEPS):
            h = (h * first).sin()
        return h

    found = rolled(traced(anchored, X))
    assert loops(found) == [STEPS]
    np.testing.assert_allclose(found.interpret(X), anchored(torch.from_numpy(X)), rtol=1e-12)


def test_layers_with_their_own_weights_stay() -> None:
    def layers(x: Any, *weights: Any) -> Any:
        for w in weights:
            x = torch.tanh(x @ w)
        return x

    func = traced(layers, X[0, :5, :3] @ W, *(U + i for i in range(STEPS)))
    assert not loops(rolled(func))


@pytest.mark.parametrize("backend", ["mlir", "interpreter"])
def test_a_compiled_loop(backend: str) -> None:
    """A loop of more steps than `roll` leaves alone, as a user writes it."""

    def smoothed(x: Any, a: Any) -> Any:
        s, rows = torch.zeros_like(a), []
        for t in range(100):
            s = s * a + x[:, t]
            rows.append(s)
        return torch.stack(rows, 1)

    x, a = torch.randn(8, 100, dtype=torch.float64), torch.rand(8, dtype=torch.float64)
    torch._dynamo.reset()
    call = torch.compile(smoothed, backend="stack", options={"backend": backend})
    torch.testing.assert_close(call(x, a), smoothed(x, a), rtol=1e-12, atol=1e-12)
