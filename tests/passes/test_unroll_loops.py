"""unroll_loops: elementwise loops become copies of their bodies, with the same values."""

from __future__ import annotations

import numpy as np
import pytest

import stack
from stack.ir.func import Func
from stack.ir.parser import parse
from stack.rewrite import Pipeline

STATE = "(%i: i32[], %y: f32[8], %x: f32[8])"
BEFORE = """
func @newton(%x: f32[8]) -> (f32[8]) at tensor {{
  %while = while(0:i32, %x, %x) : (i32[], f32[8], f32[8]) {{{state}
    %lt = lt(%i, {count}:i32) : bool[]
    return %lt
  }} {{{state}
    %add = add(%i, 1:i32) : i32[]
    %div = {change} : f32[8]
    %sum = add(%y, %div) : f32[8]
    return %add, %sum, %x
  }}
  %root = item(%while) {{index=1}} : f32[8]
  return %root
}}
"""
EXPECTED = """
func @newton(%x: f32[8]) -> (f32[8]) at tensor {
  %div = div(%x, %x) : f32[8]
  %sum = add(%x, %div) : f32[8]
  %div_1 = div(%x, %sum) : f32[8]
  %root = add(%sum, %div_1) : f32[8]
  return %root
}
"""


def before(count: int, change: str = "div(%x, %y)") -> Func:
    return parse(BEFORE.format(state=STATE, count=count, change=change))


def unrolled(func: Func, most: int = 256) -> Func:
    passes = f"canonicalize,unroll_loops{{most={most}}},canonicalize,trip_counts"
    return Pipeline(passes).run(func, check=True).func


def counts(func: Func) -> list[int | None]:
    return [n.attrs.get("trip_count") for n in func.nodes if n.op == "while"]


def test_two_iterations() -> None:
    assert str(unrolled(before(2))).strip() == EXPECTED.strip()


def test_no_iteration() -> None:
    assert unrolled(before(0)).results == unrolled(before(0)).params


@pytest.mark.parametrize(
    ("count", "most", "left"),
    [(12, 24, []), (12, 12, [2]), (13, 12, [2]), (13, 4, [6]), (13, 3, [13]), (1, 1, [])],
)
def test_the_limit_is_on_operations(count: int, most: int, left: list[int]) -> None:
    made = unrolled(before(count), most)
    assert counts(made) == left
    assert str(unrolled(made, most)) == str(made)


@pytest.mark.parametrize(
    "change", ['scan(%y) {axis=0, kind="sum", reverse=false}', "reverse(%y) {axes=[0]}"]
)
def test_elements_that_read_others_stay_in_a_loop(change: str) -> None:
    assert counts(unrolled(before(4, change))) == [4]


def test_random_bodies() -> None:
    jax = pytest.importorskip("jax")
    jnp, rng = jax.numpy, np.random.default_rng()
    ops = [jnp.add, jnp.subtract, jnp.multiply, jnp.maximum, lambda a, b: jnp.where(a > b, a, -b)]
    left: list[int | None] = []
    for _ in range(3):
        picks, sides = rng.integers(0, len(ops), 4), rng.integers(0, 3, (4, 2))
        count = int(rng.integers(1, 40))

        def fn(x, y, picks=picks, sides=sides, count=count):  # type: ignore[no-untyped-def]
            def body(i, state):  # type: ignore[no-untyped-def]
                held = [*state, 0.1 * i * jnp.ones_like(state[0])]
                for pick, (a, b) in zip(picks, sides, strict=True):
                    held = [held[1], held[2], jnp.tanh(ops[pick](held[a], held[b]))]
                return held[1], held[2]

            return jax.lax.fori_loop(0, count, body, (x, y))

        args = [jnp.asarray(rng.standard_normal((3, 5)), jnp.float32) for _ in range(2)]
        left += counts(unrolled(stack.trace(fn, *args), 512))
        for a, b in zip(stack.compile(fn, *args)(*args), fn(*args), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
    assert None not in left


def test_long_chains_that_share_values() -> None:
    jax = pytest.importorskip("jax")
    x = jax.numpy.ones(8, np.int32)

    def fn(x):  # type: ignore[no-untyped-def]
        return jax.lax.fori_loop(0, 200, lambda _, s: (s[1], s[0] + s[1]), (x, x))

    np.testing.assert_array_equal(stack.compile(fn, x)(x), fn(x))
