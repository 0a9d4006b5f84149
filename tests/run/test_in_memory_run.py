"""A run in Python: short reprs, tables for notebooks, questions, resuming."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import stack
from stack.calls import Compiled
from stack.errors import StackError, UsageError, VerifyError

torch = pytest.importorskip("torch")
ARGS = (torch.randn(4, 8), torch.randn(8, 8))
ARRAYS = [a.numpy() for a in ARGS]


def layer(x, w):
    hidden = torch.tanh(x @ w)
    return torch.softmax(hidden, -1)


@pytest.fixture(scope="module")
def compiled() -> Compiled:
    return stack.compile(layer, *ARGS)


def test_reprs_are_one_short_line(compiled: Compiled) -> None:
    run = compiled.run
    for value in (compiled, compiled.graph, run, run["fused"], *run.kernels, compiled.func):
        assert len(repr(value)) < 200
        assert "\n" not in repr(value)
    assert "layer" in repr(compiled)


def test_notebooks_show_tables(compiled: Compiled) -> None:
    text = compiled._repr_html_()
    assert text == compiled.run._repr_html_()
    assert "<table>" in text
    assert "fused" in text
    assert len(text) < 40_000
    assert "<script" not in text
    assert "&lt;" in compiled.run.kernels[0]._repr_html_()
    assert compiled.func._repr_html_().startswith("<pre>func @layer")


def test_questions(compiled: Compiled) -> None:
    run = compiled.run
    line = f"test_in_memory_run.py:{layer.__code__.co_firstlineno + 1}"
    assert "fusion" in run.diff("canonical", "fused")
    assert run.diff("fused", "fused") == ""
    assert run.func("fused") is run["fused"].func
    with pytest.raises(ValueError, match="asm"):
        run.func("asm")
    assert "%hidden = tanh" in run.where(line)
    assert "formed" in run.explain("softmax")
    assert "%hidden and %softmax: " in run.explain("hidden", "softmax")
    for ask in (lambda: run.diff("fused", "fuzed"), lambda: run.where("elsewhere.py:1")):
        with pytest.raises(UsageError):
            ask()


@pytest.mark.parametrize("stage", ["imported", "canonical", "fused", "tiled", "loop"])
def test_a_run_goes_on_from_a_stage(compiled: Compiled, stage: str) -> None:
    taken = compiled.run.resume(stage)
    assert taken.run.stages == compiled.run.stages
    np.testing.assert_allclose(taken(*ARRAYS), layer(*ARGS), rtol=1e-5, atol=1e-6)


def test_it_goes_on_with_another_function(compiled: Compiled) -> None:
    text = compiled.run["canonical"].text.replace("tanh(", "sigmoid(")
    taken = compiled.run.resume("canonical", text)
    expected = torch.softmax(torch.sigmoid(ARGS[0] @ ARGS[1]), -1)
    np.testing.assert_allclose(taken(*ARRAYS), expected, rtol=1e-5, atol=1e-6)


def test_what_does_not_verify_does_not_run(
    compiled: Compiled,
) -> None:
    with pytest.raises((VerifyError, StackError)):
        compiled.run.resume("canonical", compiled.run["canonical"].text.replace("[4, 8]", "[4, 9]"))
    with pytest.raises(UsageError, match="fused"):
        compiled.run.resume("fuzed")


def test_capture_records_what_torch_compiles(tmp_path: Path) -> None:
    torch.compiler.reset()
    with stack.capture() as run:
        fast = torch.compile(layer, backend="stack")
        fast(*ARGS)
    assert len(run.runs) == 1
    assert "fused" in run.stages
    assert run["fused"].func is not None
    assert "1 graph" in repr(run)
    assert "<table>" in run._repr_html_()
    with stack.capture() as again:
        fast(*ARGS)
    with pytest.raises(StackError, match="nothing was compiled"):
        _ = again.stages


def test_an_error_of_eager_names_the_users_line() -> None:
    line = layer.__code__.co_firstlineno + 1
    place = f"test_in_memory_run.py:{line}: `hidden = torch.tanh(x @ w)`"
    for wrong in (torch.randn(9, 8), torch.randn(8, 8).double()):
        with pytest.raises(RuntimeError) as caught:
            stack.compile(layer, ARGS[0], wrong)
        assert place in str(caught.value)
        assert len(str(caught.value).splitlines()) <= 10
