"""Calls that are made for their effects: each happens, in the order of the program, and counts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import io_callback

import stack
from stack.errors import UnsupportedOp, UsageError
from stack.explore.check import check_draws

SEEN: list[tuple[Any, ...]] = []
X = jnp.arange(3.0)
FLOATS = jax.ShapeDtypeStruct((3,), np.float32)


def seen(tag: str, *values: Any) -> None:
    """See values when the program runs."""

    def see(*values: Any) -> None:
        SEEN.append((tag, *(np.asarray(v).tolist() for v in values)))

    jax.debug.callback(see, *values, ordered=True)


def tripled(x: Any) -> Any:
    SEEN.append(("tripled", np.asarray(x).tolist()))
    return np.asarray(x) * 3


def two(x: Any) -> Any:
    seen("sum", x.sum())
    seen("both", x, x * 2)
    return x * 2


def of_scan(x: Any) -> Any:
    return lax.scan(lambda c, v: (seen("step", c, v), (c + v, c))[1], 0.0, x)


def of_cond(x: Any) -> Any:
    return lax.cond(x.sum() > 2, lambda x: (seen("large", x), x + 1)[1], lambda x: x - 1, x)


def of_while(x: Any) -> Any:
    def test(state: Any) -> Any:
        seen("test", state[0])
        return state[0] < 3

    def body(state: Any) -> Any:
        seen("body", state[0])
        return state[0] + 1, state[1] * 2

    return lax.while_loop(test, body, (0, x))


def of_test_alone(x: Any) -> Any:
    return lax.while_loop(lambda s: (seen("test", s), s.sum() < 9)[1], lambda s: s * 2, x)


def of_io(x: Any) -> Any:
    y = io_callback(tripled, FLOATS, x, ordered=True)
    io_callback(tripled, FLOATS, y, ordered=True)  # its result is not used
    seen("after", y)
    return x


def nested(x: Any) -> Any:
    def step(c: Any, v: Any) -> Any:
        return lax.cond(v > 0.5, lambda: (seen("in", v), c + v)[1], lambda: c), None

    return lax.scan(step, 0.0, x)[0]


CASES: dict[str, Callable[[Any], Any]] = {
    "two": two,
    "no results": lambda x: seen("alone", x),
    "constants": lambda x: (seen("here"), seen("here"), seen("there", 1), x)[-1],
    "scan": of_scan,
    "cond": of_cond,
    "while": of_while,
    "test of a loop": of_test_alone,
    "io": of_io,
    "nested": nested,
    "nested jit": lambda x: jax.jit(two)(x) + jax.jit(two)(x + 1),
    "gradient": jax.grad(lambda x: two(x).sum()),
    "fori": lambda x: lax.fori_loop(0, 4, lambda i, s: (seen("i", i), s + i)[1], x),
    "types": lambda x: (seen("kinds", x.astype(jnp.bfloat16), x > 1, x.astype(int)), x)[1],
}


@pytest.mark.every(2)
@pytest.mark.parametrize("name", CASES)
def test_effects_happen_in_order_at_each_call(name: str) -> None:
    fn = CASES[name]
    for x in (X, -X) if name in ("cond", "nested") else (X,):
        SEEN.clear()
        want = jax.jit(fn)(x)
        jax.effects_barrier()
        wanted = list(SEEN)
        compiled = stack.compile(fn, x)
        for _ in range(2):
            SEEN.clear()
            got = compiled(x)
            assert wanted == SEEN
        for mine, theirs in zip(*map(jax.tree.leaves, (got, want)), strict=True):
            np.testing.assert_array_equal(mine, theirs)
        count = compiled.run.coverage["fallback_ops"]
        assert {"jax:debug_callback", "jax:io_callback"} & set(count)


def test_prints_are_printed_and_counted(capfd: pytest.CaptureFixture[str]) -> None:
    def fn(x: Any) -> Any:
        jax.debug.print("the sum is {} of {x}", x.sum(), x=x)
        return x + 1

    compiled = stack.compile(fn, X)
    assert not capfd.readouterr().out
    compiled(X)
    assert capfd.readouterr().out == "the sum is 3.0 of [0. 1. 2.]\n"
    stack.jit(fn)(X)
    assert capfd.readouterr().out == "the sum is 3.0 of [0. 1. 2.]\n"
    assert compiled.run.coverage["fallback_ops"] == {"jax:debug_print": 1}
    with pytest.raises(UnsupportedOp, match="debug_print"):
        stack.compile(fn, X, strict=True)


def test_an_unordered_callback_under_vmap_happens_for_each() -> None:
    SEEN.clear()
    fn = jax.vmap(lambda v: (jax.debug.callback(lambda v: SEEN.append((float(v),)), v), v * 2)[1])
    np.testing.assert_array_equal(stack.jit(fn)(X), X * 2)
    assert sorted(SEEN) == [(0.0,), (1.0,), (2.0,)]


def test_complex_numbers_reach_a_callback() -> None:
    SEEN.clear()
    stack.jit(lambda x: (seen("complex", x * (1 + 2j)), x)[1])(X[1:])
    assert SEEN == [("complex", [1 + 2j, 2 + 4j])]


@pytest.mark.parametrize("name", ["threefry2x32", "rbg"])
def test_keys_are_printed_as_jit_prints_them(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    keys = jax.random.split(jax.random.key(3, impl=name), 2)

    def fn(keys: Any) -> Any:
        jax.debug.print("{}", keys)
        return jax.random.uniform(keys[0])

    want = jax.jit(fn)(keys)
    jax.effects_barrier()
    printed = capfd.readouterr().out
    np.testing.assert_allclose(stack.jit(fn)(keys), want)
    assert capfd.readouterr().out == printed


def test_errors_of_a_callback_are_raised() -> None:
    def refuse(x: Any) -> None:
        raise KeyError("refused")

    fn = stack.jit(lambda x: (jax.debug.callback(refuse, x), x)[1])
    with pytest.raises(jax.errors.JaxRuntimeError, match="KeyError: 'refused'"):
        jax.block_until_ready(fn(X))


def test_programs_without_effects_have_no_token() -> None:
    func = stack.trace(lambda x: lax.scan(lambda c, v: (c + v, c), 0.0, x), X)
    assert len(func.results) == 2
    assert "token" not in str(func)
    func = stack.trace(CASES["scan"], X)
    assert [str(r.type) for r in func.results] == ["f32[]", "f32[3]"]
    assert [str(r.type) for r in stack.trace(CASES["no results"], X).results] == ["bool[]"]


def test_programs_that_print_are_repeatable() -> None:
    """`stackc compare` refuses programs that draw; one that prints is none."""
    for name in CASES.keys() - {"io"}:
        check_draws(stack.trace(CASES[name], X))
    with pytest.raises(UsageError, match="io_callback"):
        check_draws(stack.trace(lambda x: io_callback(tripled, FLOATS, x) + 1, X))
