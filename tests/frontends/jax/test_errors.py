"""A trace that fails: its own error is raised, and the program has run once."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import stack
from stack.run.rejected_arguments import FAULT, OWN, UNTRACED

X = jnp.ones(3)
ENTRIES: dict[str, Callable[..., Any]] = {
    "trace": lambda fn: stack.trace(fn, X),
    "compile": lambda fn: stack.compile(fn, X),
    "jit": lambda fn: stack.jit(fn)(X),
    "jit of a gradient": lambda fn: stack.jit(jax.grad(lambda x: fn(x).sum()))(X),
}


class Once:
    """A program that spends what it reads, as a module of another trace would."""

    def __init__(self, body: Callable[[Any, float], Any]) -> None:
        self.body, self.held, self.calls = body, [2.0], 0

    def __call__(self, x: Any) -> Any:
        self.calls += 1
        return self.body(x, self.held.pop())


@pytest.mark.parametrize("entry", ENTRIES)
def test_the_first_error_is_raised(entry: str) -> None:
    once = Once(lambda x, w: jnp.where(x > 0, x * w, jnp.zeros(4)))
    with pytest.raises(ValueError, match="Incompatible shapes") as raised:
        ENTRIES[entry](once)
    assert once.calls == 1
    (note,) = (n for n in raised.value.__notes__ if n.endswith(OWN))
    assert "test_errors.py" in note
    frames = traceback.extract_tb(raised.value.__traceback__)
    assert any("test_errors" in f.filename for f in frames)


@pytest.mark.parametrize("entry", ENTRIES)
def test_errors_of_the_program_itself(entry: str) -> None:
    def body(x: Any, w: float) -> Any:
        raise KeyError("weights")

    once = Once(body)
    with pytest.raises(KeyError, match="weights"):
        ENTRIES[entry](once)
    assert once.calls == 1


@pytest.mark.parametrize("entry", ENTRIES)
def test_what_jax_cannot_trace(entry: str) -> None:
    once = Once(lambda x, w: x * w if x.sum() > 0 else x)
    with pytest.raises(jax.errors.TracerBoolConversionError) as raised:
        ENTRIES[entry](once)
    assert once.calls == 1
    assert any(note.startswith(UNTRACED) for note in raised.value.__notes__)


def test_a_fault_of_ours_is_called_one(monkeypatch: pytest.MonkeyPatch) -> None:
    from stack.frontends.jax.capture import capture

    monkeypatch.setattr(capture, "Leaf", None)
    once = Once(lambda x, w: x * w)
    with pytest.raises(TypeError) as raised:
        stack.trace(once, X)
    assert once.calls == 1
    assert raised.value.__notes__ == [FAULT]


def test_another_signature_names_what_was_compiled_for() -> None:
    fn = stack.jit(lambda x, y: x @ y)
    fn(jnp.ones((2, 3)), jnp.ones((3, 2)))
    with pytest.raises(TypeError) as raised:
        fn(jnp.ones((2, 3)), jnp.ones((4, 2)))
    assert "'y' was compiled for f32[3, 2], got f32[4, 2]" in "\n".join(raised.value.__notes__)


def test_a_program_that_traces_runs_once() -> None:
    once = Once(lambda x, w: x * w)
    assert float(stack.jit(once)(X).sum()) == 6
    assert once.calls == 1
