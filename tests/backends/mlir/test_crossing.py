"""A whole call in native code: what it asks, makes, raises and lets go of."""

from __future__ import annotations

import gc
import sys
import threading
import weakref
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from stack.backends.calls import native_call
from stack.backends.mlir.host import address
from stack.ir import Builder, param, tensor
from stack.run.backend import AddressProgram, CallLayout
from stack.run.compile import compile_func, find_backend
from stack.run.record import Run

SHAPE = (3, 5)


def program() -> AddressProgram:
    """A program of x and y: tanh(x) * y, the sums of its rows, and x itself."""
    b = Builder()
    x, y = param("x", tensor("f32", *SHAPE)), param("y", tensor("f32", *SHAPE))
    product = b.mul(b.tanh(x), y)
    func = b.func("main", [x, y], [product, b.reduce(product, kind="sum", axes=(1,)), x])
    run = Run("", "ir", "mlir")
    options = {"cache": False}
    made = compile_func(func, find_backend("mlir"), run, "default", options).by_address()
    assert made is not None
    return made


def wanted(x: Any, y: Any) -> list[Any]:
    product = np.tanh(x.astype(np.float64)) * y
    return [product, product.sum(1), x]


def draw(seed: int) -> Any:
    return np.random.default_rng(seed).standard_normal(SHAPE, dtype=np.float32)


LAYOUTS = [(SHAPE, np.float32), (SHAPE[:1], np.float32), (SHAPE, np.float32)]


def way(**changes: Any) -> CallLayout:
    made = CallLayout(2, lambda *_: True, address, np.empty, LAYOUTS, (0, 1), (0, 1, 2))
    return replace(made, **changes)


def entered(**changes: Any) -> Any:
    made = program().entered(way(**changes))
    assert made is not None
    return made


def test_values() -> None:
    call, args = entered(), (draw(0), draw(1))
    for given in (args, [*args], args):
        for found, value in zip(call(given), wanted(*args), strict=True):
            np.testing.assert_allclose(found, value, rtol=1e-5, atol=1e-6)


def test_arguments_and_results_in_another_order() -> None:
    layouts = [LAYOUTS[1], LAYOUTS[2], LAYOUTS[0]]
    call = entered(count=3, places=(2, 0), layouts=layouts, numbers=(2, 0, 1))
    x, y = draw(0), draw(1)
    sums, same, product = call((y, np.full(SHAPE, np.nan), x))
    for found, value in zip((product, sums, same), wanted(x, y), strict=True):
        np.testing.assert_allclose(found, value, rtol=1e-5, atol=1e-6)
    assert not np.may_share_memory(same, x)


def test_other_arguments_are_not_run_on() -> None:
    made: list[Any] = []
    call = entered(is_alike=lambda x, y: x is not y, make=lambda *_: made.append(0))
    x = draw(0)
    assert call((x, x)) is None
    assert made == []


def test_where_memory_is_short_there_is_no_result_and_no_error() -> None:
    first: list[Any] = []

    def make(*layout: Any) -> Any:
        if first:
            raise MemoryError
        first.append(weakref.ref(made := np.empty(*layout)))
        return made

    assert entered(make=make)((draw(0), draw(1))) is None
    assert first[0]() is None


def _raises(*_: Any) -> Any:
    raise KeyError("told")


@pytest.mark.parametrize("what", ["is_alike", "address"])
def test_what_is_raised_is_the_callers(what: str) -> None:
    made = program()
    call: Any = made.entered(way(**{what: _raises}))
    args = draw(0), draw(1)
    with pytest.raises(KeyError, match="told"):
        call(args)
    other: Any = made.entered(way())  # of the same program, whose lock is free
    np.testing.assert_allclose(other(args)[0], wanted(*args)[0], rtol=1e-5, atol=1e-6)


def test_what_is_no_sequence_is_refused() -> None:
    with pytest.raises(TypeError):
        entered()(3)


@pytest.mark.parametrize("kind", ["run", "other", "short", "raised"])
def test_nothing_is_held_after_a_call(kind: str) -> None:
    changes: dict[str, Any] = {
        "run": {}, "other": {"is_alike": lambda *_: False}, "short": {"make": _raises},
        "raised": {"address": _raises},
    }[kind]  # fmt: skip
    args = draw(0), draw(1)
    yes, call = object(), entered(**{"is_alike": lambda *_: yes, **changes})
    things = [args, *args, yes, LAYOUTS[0], np.empty]

    def round_() -> list[int]:
        for _ in range(100):
            with suppress(KeyError):
                call(args)
        gc.collect()
        return [sys.getrefcount(thing) for thing in things]

    assert round_() == round_()


def test_results_are_the_callers_alone() -> None:
    call = entered()
    found = call((draw(0), draw(1)))
    result = weakref.ref(found[0])
    del found
    assert result() is None


def test_the_program_is_let_go_of() -> None:
    def check(*_: Any) -> bool:
        return True

    held, call = weakref.ref(check), entered(is_alike=check)
    del check, call
    gc.collect()
    assert held() is None


def test_a_call_that_waits_for_another_lets_python_run() -> None:
    call = entered()
    lock = next(x for x in call.__self__ if getattr(x, "__name__", "") == "acquire").__self__
    args, found = (draw(0), draw(1)), []
    thread = threading.Thread(target=lambda: found.append(call(args)))
    with lock:
        thread.start()
        thread.join(0.05)
        assert found == []
    thread.join()
    np.testing.assert_allclose(found[0][0], wanted(*args)[0], rtol=1e-5, atol=1e-6)


def test_no_function_where_code_is_the_engines(monkeypatch: pytest.MonkeyPatch) -> None:
    made = program()
    monkeypatch.setattr(native_call, "_methods", [])
    monkeypatch.setattr(native_call.elf, "IS_SUPPORTED", False)
    assert made.entered(way()) is None
    args = draw(0), draw(1)
    results = [np.empty(*layout) for layout in LAYOUTS]
    made.call([*map(address, args), *map(address, results)])
    np.testing.assert_allclose(results[0], wanted(*args)[0], rtol=1e-5, atol=1e-6)


def test_a_function_keeps_its_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native_call, "_methods", [])
    call, args = entered(), (draw(0), draw(1))
    native_call._methods.clear()  # pyright: ignore[reportPrivateUsage]  # as at Python's end
    gc.collect()
    np.testing.assert_allclose(call(args)[0], wanted(*args)[0], rtol=1e-5, atol=1e-6)
