"""Complex numbers of JAX: pairs of real ones, inside and at the border of a program."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax_harness import check, fallbacks

import stack
from stack.frontends.jax import FRONTEND

RNG = np.random.default_rng(0)
A = RNG.standard_normal((3, 4)) + 1j * RNG.standard_normal((3, 4))
B = RNG.standard_normal((3, 4)) + 1j * RNG.standard_normal((3, 4))
WIDE = jnp.asarray(RNG.standard_normal((40, 3)) + 2j, jnp.complex64)
EDGES = np.array([4, -4, -4 - 0j, complex(-4, -0.0), 3j, -3j, 0, 1e-3 - 2j, 3e18 + 4e18j])

# the same source in NumPy at complex128 is the reference
CASES: dict[str, Callable[..., Any]] = {
    "products": lambda m, a, b: (a * b, a @ b.T, a * 2.5, a * (1 - 2j), 3 * a.real * b),
    "sums": lambda m, a, b: (a + b - 1, 1j - a, a.sum(), a.mean(0), m.cumsum(a, 1), -b),
    "reductions": lambda m, a, b: (m.prod(a, 1), m.prod(b), a.sum((0, 1))),
    "quotients": lambda m, a, b: (a / b, 1 / a, a / 3, b / 2j),
    "parts": lambda m, a, b: (a.real, b.imag + 1, m.abs(a), m.angle(b), a.conj() * a, m.conj(a)),
    "functions": lambda m, a, b: (m.exp(a), m.log(b), m.cos(a), m.sin(a), m.cosh(b), m.sinh(b)),
    "powers": lambda m, a, b: (a**3, m.square(b), m.sqrt(a), a**0, a**2),
    "moved": lambda m, a, b: (m.concatenate([a, b]), m.stack([a, b])[1:], a[::-1].reshape(-1)),
    "spread": lambda m, a, b: (a.T, m.broadcast_to(a, (2, 3, 4)), m.tile(a, (2, 1)), m.pad(a, 1)),
    "read": lambda m, a, b: (a[1], a[:, 1:3], a[m.array([2, 0, 2])], m.split(a, 2, 1)[1]),
    "chosen": lambda m, a, b: (m.where(a.real > 0, a, b), a == b, a != a, a.astype(bool)),
    "made": lambda m, a, b: (a.real + 1j * b.imag, m.ones_like(a), m.full((2,), 1 + 2j)),
}


@pytest.fixture(autouse=True, scope="module")
def wide() -> Any:
    with jax.enable_x64(True):
        yield


def near(got: Any, want: Any, tolerance: float) -> None:
    for mine, theirs in zip(*map(jax.tree_util.tree_leaves, (got, want)), strict=True):
        assert np.shape(mine) == np.shape(theirs)
        assert np.iscomplexobj(mine) == np.iscomplexobj(theirs)
        np.testing.assert_allclose(mine, theirs, rtol=tolerance, atol=tolerance)


@pytest.mark.every(5)
@pytest.mark.parametrize(("name", "bits"), product(CASES, (64, 128)))
def test_values(name: str, bits: int) -> None:
    given = [jnp.asarray(v, f"complex{bits}") for v in (A, B)]
    captured = check(lambda a, b: CASES[name](jnp, a, b), *given)
    assert "c64" not in str(captured.func) and "c128" not in str(captured.func)
    want = CASES[name](np, A, B)
    call = stack.compile(lambda a, b: CASES[name](jnp, a, b), *given)
    near(call(*given), want, 1e-12 if bits == 128 else 2e-5)
    assert not call.run.coverage["fallback"]


def test_square_roots_and_signs_at_the_edges() -> None:
    def both(z: Any) -> Any:
        return jnp.sqrt(z), jnp.abs(z), jnp.sign(z)

    given = jnp.asarray(EDGES)
    size = np.where(EDGES == 0, 1, np.abs(EDGES))
    near(stack.compile(both, given)(given), (np.sqrt(EDGES), np.abs(EDGES), EDGES / size), 1e-14)


def rotated(x: Any, angles: Any) -> Any:
    """Llama's own rotary embedding."""
    halves = x.astype(jnp.float32).reshape(*x.shape[:-1], -1, 2)
    turned = lax.complex(halves[..., 0], halves[..., 1]) * angles
    return jnp.stack([turned.real, turned.imag], -1).reshape(x.shape).astype(x.dtype)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_rotary_embedding(dtype: str) -> None:
    x = RNG.standard_normal((2, 6, 2, 8))
    angles = np.exp(1j * RNG.standard_normal((6, 1, 4)))
    given = jnp.asarray(x, dtype), jnp.asarray(angles, jnp.complex64)
    call = stack.compile(rotated, *given)
    assert call.run.coverage["native"] == call.run.coverage["ops"]
    assert "%angles: f32[6, 1, 4, 2]" in call.run["imported"].text
    # one kernel: nothing of the pairs goes through memory
    assert call.run["fused"].text.count(" = fusion(") == 1
    want = ((np.asarray(given[0], float)).view(complex) * angles).view(float)
    np.testing.assert_allclose(
        np.asarray(call(*given), float), want, atol=2e-2 if dtype == "bfloat16" else 1e-5
    )


def test_loops_and_branches_carry_pairs() -> None:
    def program(z: Any) -> Any:
        last, rows = lax.scan(lambda c, r: (c * r, c + r), jnp.ones(4, z.dtype), z)
        grown = lax.while_loop(lambda c: jnp.abs(c) < 9, lambda c: c * (1 + 1j), z[0, 0])
        side = lax.cond(z[0, 0].real > 0, lambda v: v * 1j, jnp.conj, z)
        return last, rows, grown, side, jax.jit(jnp.exp)(z)

    captured = check(program, jnp.asarray(A))
    assert [n.op for n in captured.func.body.nodes if n.blocks] == ["while", "while", "cond"]
    call = stack.compile(program, jnp.asarray(A))
    near(call(jnp.asarray(A)), program(jnp.asarray(A)), 1e-12)
    assert not call.run.coverage["fallback"]


def test_what_has_no_rule_is_called_with_complex_arrays() -> None:
    def filtered(x: Any) -> Any:
        return jnp.fft.irfft(jnp.fft.rfft(x, norm="ortho") * 2j, n=7)

    x = jnp.asarray(RNG.standard_normal((3, 8)))
    captured = check(filtered, x, opaque=["jax:fft"])
    assert len(fallbacks(captured.func)) == 2
    call = stack.compile(filtered, x)
    near(call(x), np.fft.irfft(np.fft.rfft(x, norm="ortho") * 2j, n=7), 1e-12)
    assert call.run.coverage["fallback_ops"] == {"jax:fft": 2}


def test_a_linear_solve_is_its_solver() -> None:
    def solved(a: Any, b: Any) -> Any:
        return jax.lax.custom_linear_solve(lambda x: a * x, b, lambda _, y: y / a)

    a, b = jnp.asarray(A), jnp.asarray(B)[0]
    call = stack.compile(solved, a[0], b)
    near(call(a[0], b), np.asarray(b) / np.asarray(a[0]), 1e-12)
    assert not call.run.coverage["fallback"]


def test_a_large_constant_and_numbers_of_the_host() -> None:
    assert FRONTEND.capture(lambda x: x * WIDE, (WIDE,)).bound[0].shape == (40, 3, 2)
    call = stack.compile(lambda x: x * WIDE, WIDE)
    near(call(np.asarray(WIDE)), np.asarray(WIDE) ** 2, 1e-5)


def test_gradients() -> None:
    def loss(z: Any, w: Any) -> Any:
        return jnp.abs(jnp.exp(z) @ w.T / (2 + jnp.abs(w).sum())).sum()

    given = jnp.asarray(A), jnp.asarray(B)
    call = stack.compile(jax.grad(loss, (0, 1)), *given)
    near(call(*given), jax.grad(loss, (0, 1))(*given), 1e-11)
    assert not call.run.coverage["fallback"]


@pytest.mark.every(2)
@pytest.mark.parametrize("name", ["exp", "sin", "cos", "sinh", "cosh", "sqrt", "log"])
def test_functions_at_the_edges(name: str) -> None:
    """Zeros, infinities and nan in both parts, as in NumPy; a sign that C leaves open is open."""
    edges = [0.0, -0.0, 1.0, -1.0, 0.5, 30.0, np.inf, -np.inf, np.nan]
    with np.errstate(all="ignore"):
        z = np.array([complex(a, b) for a in edges for b in edges])
        want = getattr(np, name)(z)
    got = np.asarray(stack.jit(getattr(jnp, name))(z))
    for part, wanted in ((got.real, want.real), (got.imag, want.imag)):
        is_open = np.isnan(part) & np.isinf(wanted)  # inf of unknown sign: nan is as good
        part, wanted = part[~is_open], wanted[~is_open]
        np.testing.assert_allclose(part, wanted, rtol=1e-12, atol=1e-12)
        assert is_open.sum() <= 6


CORNERS = (0.0, -0.0, 1.0, -2.0, 0.5, np.inf, -np.inf, np.nan, 1e30, -1e-30)


@pytest.mark.parametrize("kind", [np.complex64, np.complex128])
def test_quotients_at_the_edges_are_those_of_xla(kind: type) -> None:
    """By zeros of both signs, infinities, nan, and numbers whose squares over- or underflow."""
    numbers = np.array([complex(re, im) for re in CORNERS for im in CORNERS], kind)
    z, w = np.repeat(numbers, len(numbers)), np.tile(numbers, len(numbers))

    def quotients(z: Any, w: Any) -> Any:
        return z / w, z.real / w, 1 / z, jnp.reciprocal(w), jnp.square(z)

    got, want = stack.jit(quotients)(z, w), jax.jit(quotients)(z, w)
    for a, b in zip(map(np.asarray, got), map(np.asarray, want), strict=True):
        whole = np.isfinite(b)
        assert (np.abs(a[whole] - b[whole]) <= 2e-6 * np.abs(b[whole]) + 1e-37).all()
        np.testing.assert_array_equal(a.real[~whole], b.real[~whole])
        np.testing.assert_array_equal(a.imag[~whole], b.imag[~whole])


def test_roots_and_logarithms_of_the_largest_numbers() -> None:
    """Numbers whose length overflows in their own type."""
    z = np.array([3e38 + 3e38j, -3e38 + 2e38j, 1e-38 - 1e-38j, 3e38], np.complex64)
    got = stack.jit(lambda z: (jnp.sqrt(z), jnp.log(z)))(z)
    for found, want in zip(got, (np.sqrt(z.astype(complex)), np.log(z.astype(complex)))):
        np.testing.assert_allclose(found, want, rtol=5e-7)
