"""The compiler in one file: every stage means the same, in C, in NumPy and in the real IR."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stack
import stack.mini as mini
from stack.demos.mini import attention, main, total
from stack.ir.ops import OPS

Arrays = list[np.ndarray]


def layer_norm(x: Any, gain: Any) -> Any:
    centred = x - mini.sum(x, axis=1, keepdims=True) / x.shape[1]
    variance = mini.sum(centred * centred, axis=1, keepdims=True) / x.shape[1]
    return centred / mini.sqrt(variance + 1e-5) * gain


def mlp(x: Any, w: Any, b: Any) -> Any:
    minus = -x
    return mini.tanh(mini.maximum(x @ w + b, 0.0)), -minus


def batched(x: Any, y: Any) -> Any:
    return mini.dot("b m k, b n k -> n b m", x, y) * 2.0


def columns(x: Any) -> Any:
    return mini.log(mini.max(x.T, axis=0)) + mini.sum(mini.exp(x.T)), x.T.T


PROGRAMS: dict[str, tuple[Callable[..., Any], list[tuple[int, ...]]]] = {
    "attention": (attention, [(7, 5), (7, 5), (7, 5)]),
    "total": (total, [(7, 5), (7, 5), (7, 3)]),
    "layer_norm": (layer_norm, [(3, 17), (17,)]),
    "mlp": (mlp, [(1, 4), (4, 6), (6,)]),
    "batched": (batched, [(2, 3, 5), (2, 4, 5)]),
    "columns": (columns, [(13, 1)]),
}


def drawn(name: str) -> tuple[Callable[..., Any], Arrays]:
    fn, shapes = PROGRAMS[name]
    rng = np.random.default_rng()
    return fn, [rng.uniform(0.5, 2.0, s).astype(np.float32) for s in shapes]


def close(found: Any, exact: Any) -> None:
    found = found if isinstance(found, tuple) else (found,)
    for have, want in zip(found, exact, strict=True):
        # sums of large terms may be small: what they are off by goes with the terms
        largest = max(1.0, float(np.abs(want).max(initial=0)))
        np.testing.assert_allclose(have, want, rtol=2e-5, atol=2e-5 * largest)


@pytest.mark.parametrize("name", PROGRAMS)
def test_every_stage_means_the_same(name: str) -> None:
    fn, args = drawn(name)
    compiled = mini.compile(fn, *args)
    exact = mini.trace(fn, *args).interpret(*(a.astype(np.float64) for a in args))
    close(compiled(*args), exact)
    close(tuple(compiled.func.interpret(*args)), exact)
    for stage in ("traced", "canonical", "fused"):
        real = stack.parse(compiled.stages[stage])  # the text is the real one's too
        stack.verify(real)
        results = real.interpret(*args)
        close(tuple(results) if isinstance(results, (list, tuple)) else results, exact)


@pytest.mark.parametrize("name", PROGRAMS)
def test_gradients_are_differences(name: str) -> None:
    fn, args = drawn(name)

    def loss(*given: Any) -> Any:
        made = fn(*given)
        many = made if isinstance(made, tuple) else (made,)
        found = mini.sum(many[0] * many[0]) if many[0].shape else many[0]
        return found + mini.sum(many[-1])

    fn_args = [a.astype(np.float64) for a in args]
    names = [f"x{i}" for i in range(len(args))]
    scope: dict[str, Any] = {"loss": loss}
    exec(f"def program({', '.join(names)}):\n    return loss({', '.join(names)})", scope)
    program = mini.trace(scope["program"], *args)
    joint = mini.grad(program)
    value, *slopes = joint.interpret(*fn_args)
    np.testing.assert_allclose(value, program.interpret(*fn_args)[0])
    close(mini.compile(joint)(*args)[1:], slopes)
    step = 1e-6
    for number, slope in enumerate(slopes):
        way = np.random.default_rng(number).standard_normal(args[number].shape)
        ahead, behind = list(fn_args), list(fn_args)
        ahead[number] = fn_args[number] + step * way
        behind[number] = fn_args[number] - step * way
        rise = program.interpret(*ahead)[0] - program.interpret(*behind)[0]
        np.testing.assert_allclose(np.sum(slope * way), rise / (2 * step), rtol=1e-4, atol=1e-5)


X = mini.param(mini.Type("f32", (2, 3)), "x")
Y = mini.param(mini.Type("f32", (3, 2)), "y")
TURN = (1, 0)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (mini.make("mul", X, mini.const(1.0)), X),
        (mini.make("mul", X, mini.const(2.0)), None),
        (mini.make("sub", X, mini.const(0.0)), X),
        (mini.make("sub", X, mini.const(-0.0)), None),
        (mini.make("add", X, mini.const(-0.0)), X),
        (mini.make("add", X, mini.const(0.0)), None),
        (mini.make("add", mini.const(0.0), X), None),
        (mini.make("sub", mini.const(0.0), X), None),
        (mini.make("div", mini.const(1.0), X), None),
        (mini.make("neg", mini.make("neg", X)), X),
        (mini.make("neg", mini.make("exp", X)), None),
        (mini.make("transpose", mini.make("transpose", X, perm=TURN), perm=TURN), X),
        (mini.make("transpose", X, perm=TURN), None),
        (mini.make("transpose", X, perm=(0, 1)), X),
        (
            mini.make("dot", X, mini.make("transpose", X, perm=TURN), rule="a k, k n -> a n"),
            mini.make("dot", X, X, rule="a k, n k -> a n"),
        ),
        (mini.make("dot", X, Y, rule="a k, k n -> a n"), None),
        (mini.make("add", mini.const(1.0), mini.const(2.0)), mini.const(3.0)),
        (mini.make("reduce", X, axes=(0,), kind="sum"), None),
    ],
)
def test_rules(before: mini.Node, after: mini.Node | None) -> None:
    func = mini.Func("f", (X, Y), (before,))
    (found,) = mini.rewrite(func, mini.RULES).results
    assert found is (before if after is None else after)


def test_nodes_that_say_the_same_are_one() -> None:
    assert mini.make("exp", X) is mini.make("exp", X)
    assert mini.make("exp", X) is not mini.make("log", X)


def test_fusion_says_why() -> None:
    args = [np.ones((4, 4), np.float32)] * 3
    compiled = mini.compile(attention, *args)
    said = {(d.producer.op, d.user.op): d.reason for d in compiled.decisions}
    assert not said["dot", "div"]  # an epilogue
    assert said["div", "dot"] == "each element would be computed 4 times"
    assert said["exp", "reduce"] == "its result has other readers too"
    assert not said["broadcast", "sub"]
    assert [len(k.ops) > 1 for k in compiled.kernels] == [True, False, True, False, True, False]


def test_nan_ties_and_infinities() -> None:
    x = np.array([[1.0, np.nan, 2.0], [3.0, 3.0, -np.inf]], np.float32)
    top, both = mini.compile(lambda x: (mini.max(x, axis=1), mini.maximum(x, 2.0)), x)(x)
    np.testing.assert_array_equal(top, x.max(1))
    np.testing.assert_array_equal(both, np.maximum(x, 2))
    joint = mini.grad(mini.trace(lambda x: mini.sum(mini.max(x, axis=1)), x))
    _, slope = mini.compile(joint)(np.array([[1, 0, 1], [2, 3, 0]], np.float32))
    np.testing.assert_array_equal(slope, [[0.5, 0, 0.5], [0, 1, 0]])


def test_the_sign_of_zero_is_kept() -> None:
    x = np.array([-0.0, 0.0, 1.0], np.float32)

    def program(x: Any) -> Any:
        sums = (x + 0.0, 0.0 + x, x - 0.0, x - -0.0, x + -0.0, 0.0 - x)
        return tuple(1.0 / s for s in sums)

    with np.errstate(divide="ignore"):
        expected, found = program(x), mini.compile(program, x)(x)
        traced = mini.trace(program, x).interpret(x)
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(traced, expected)


def test_kernels_know_their_lines_and_their_cost() -> None:
    x, w = np.ones((8, 4), np.float32), np.ones((4, 6), np.float32)
    (kernel,) = mini.compile(lambda x, w: mini.exp(x @ w), x, w).kernels
    assert kernel.flops == 2 * 8 * 4 * 6 + 8 * 6
    assert kernel.bytes == 4 * (8 * 4 + 4 * 6 + 8 * 6)
    assert all(line.startswith("test_mini.py:") for line in kernel.source)
    assert kernel.source[0] in kernel.text


@pytest.mark.parametrize(
    ("fn", "words"),
    [
        (lambda x, y: x @ x, "axis 'k' of a k, k n -> a n has two sizes, 3, 2"),
        (lambda x, y: x + y, "the operands of add do not fit: f32[2, 3], f32[3, 2]"),
        (lambda x, y: x if x >= y.T else y, "a branch on a value"),
        (lambda x, y: mini.sum(x, axis=0) @ y, "use dot(rule, x, y)"),
    ],
)
def test_errors_say_what_and_where(fn: Callable[..., Any], words: str) -> None:
    with pytest.raises(mini.MiniError) as caught:
        mini.trace(fn, np.ones((2, 3)), np.ones((3, 2)))
    assert words in str(caught.value)


def test_what_has_no_gradient_and_other_shapes_are_refused() -> None:
    x = np.ones((2, 3), np.float32)
    with pytest.raises(mini.MiniError, match="only a scalar has one"):
        mini.grad(mini.trace(lambda x: x, x))
    with pytest.raises(mini.MiniError, match=r"x is \(3, 2\); compiled for \(2, 3\)"):
        mini.compile(lambda x: x * 2.0, x)(x.T)
    broken = mini.Node("exp", (X,), (), mini.Type("f32", (3, 2)), "there.py:1")
    with pytest.raises(mini.MiniError, match=r"exp at there.py:1: the type is f32\[3, 2\]"):
        mini.verify(mini.Func("f", (X,), (broken,)))


def test_without_a_c_compiler_numpy_runs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    fn, args = drawn("layer_norm")
    compiled = mini.compile(fn, *args)
    assert compiled.backend == "numpy"
    close(compiled(*args), mini.trace(fn, *args).interpret(*(a.astype(np.float64) for a in args)))


def test_it_is_read_in_an_hour_in_the_words_of_the_real_one() -> None:
    assert len(Path(mini.__file__).read_text(encoding="utf-8").splitlines()) < 1500
    assert set(mini.OPS) <= set(OPS)
    for name in ("trace", "compile", "verify", "Func"):
        assert hasattr(stack, name) or hasattr(stack.ir, name)
        assert hasattr(mini, name)


def test_the_demo_checks_itself(capsys: pytest.CaptureFixture[str]) -> None:
    assert main() == 0
    assert "k0_iota_ge_dot_div" in capsys.readouterr().out
