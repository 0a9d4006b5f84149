from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax_harness import check

import stack

RNG = np.random.default_rng(0)
SPECIAL = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -1.0, 0.5, -0.5, 2.5, 1e-30, 80.0])
FLOATS = ["float32", "float16", "bfloat16"]
INTS = ["int8", "int16", "int32", "uint8", "uint16", "uint32"]

# primitive: the interval that arguments are drawn from
UNARY = {
    "abs": (-9, 9),
    "neg": (-9, 9),
    "sign": (-9, 9),
    "floor": (-9, 9),
    "ceil": (-9, 9),
    "sqrt": (0, 9),
    "rsqrt": (0.1, 9),
    "cbrt": (-9, 9),
    "square": (-9, 9),
    "exp": (-5, 5),
    "exp2": (-5, 5),
    "expm1": (-5, 5),
    "log": (0.1, 9),
    "log1p": (-0.9, 9),
    "sin": (-9, 9),
    "cos": (-9, 9),
    "tan": (-1.4, 1.4),
    "asin": (-1, 1),
    "acos": (-1, 1),
    "atan": (-9, 9),
    "sinh": (-3, 3),
    "cosh": (-3, 3),
    "tanh": (-3, 3),
    "asinh": (-9, 9),
    "acosh": (1, 9),
    "atanh": (-0.9, 0.9),
    "logistic": (-9, 9),
    "erf": (-3, 3),
    "erfc": (-3, 3),
    "erf_inv": (-0.99, 0.99),
    "lgamma": (0.1, 9),
    "digamma": (0.1, 9),
    "is_finite": (-1, 1),
}


def draw(shape: Any, dtype: str, low: float = -9, high: float = 9) -> Any:
    if dtype == "bool":
        return jnp.asarray(RNG.random(shape) > 0.5)
    if "int" in dtype:
        low = max(low, 0) if dtype.startswith("u") else low
        return jnp.asarray(RNG.integers(int(low), int(high) + 1, shape), dtype)
    return jnp.asarray(RNG.uniform(low, high, shape), dtype)


@pytest.mark.each
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", UNARY)
def test_unary(name: str, dtype: str) -> None:
    check(
        getattr(lax, name),
        draw((3, 5), dtype, *UNARY[name]),
        tolerance=None if dtype != "float32" else 5e-5,
    )


@pytest.mark.every(2)
@pytest.mark.parametrize("name", [n for n in UNARY if n not in ("tan", "sin", "cos")])
def test_unary_special_values(name: str) -> None:
    check(getattr(lax, name), jnp.asarray(SPECIAL, jnp.float32), tolerance=1e-4)


@pytest.mark.each
@pytest.mark.parametrize("shape", [(), (0,), (2, 0, 3), (1,), (4, 3)])
@pytest.mark.parametrize("name", ["exp", "neg", "erfc", "round", "cbrt"])
def test_unary_shapes(name: str, shape: tuple[int, ...]) -> None:
    check(getattr(lax, name), draw(shape, "float32"), tolerance=1e-4)


@pytest.mark.each
@pytest.mark.parametrize("name", ["add", "sub", "mul", "div", "max", "min", "pow", "rem", "atan2"])
@pytest.mark.parametrize("dtype", FLOATS)
def test_binary_floats(name: str, dtype: str) -> None:
    low = 0.5 if name in ("pow", "div", "rem") else -9
    check(getattr(lax, name), draw((4, 3), dtype, low, 4), draw((4, 3), dtype, low, 4))


@pytest.mark.each
@pytest.mark.parametrize(
    "name", ["add", "sub", "mul", "div", "max", "min", "rem", "and", "or", "xor"]
)
@pytest.mark.parametrize("dtype", INTS)
def test_binary_integers(name: str, dtype: str) -> None:
    fn = getattr(
        lax, {"and": "bitwise_and", "or": "bitwise_or", "xor": "bitwise_xor"}.get(name, name)
    )
    low = 1 if name in ("div", "rem") else -100
    check(fn, draw((40,), dtype, -100, 100), draw((40,), dtype, low, 100))


@pytest.mark.parametrize("name", ["add", "multiply", "maximum", "minimum", "bitwise_xor"])
def test_binary_bool(name: str) -> None:
    check(getattr(jnp, name), draw((20,), "bool"), draw((20,), "bool"))


@pytest.mark.parametrize("name", ["max", "min", "eq", "ne", "lt", "le", "gt", "ge"])
def test_binary_special_values(name: str) -> None:
    x, y = np.meshgrid(SPECIAL, SPECIAL)
    check(getattr(lax, name), jnp.asarray(x, jnp.float32), jnp.asarray(y, jnp.float32))


@pytest.mark.each
@pytest.mark.parametrize("dtype", ["float32", "int32", "uint8", "bool", "bfloat16"])
@pytest.mark.parametrize("name", ["eq", "ne", "lt", "le", "gt", "ge"])
def test_comparisons(name: str, dtype: str) -> None:
    check(getattr(lax, name), draw((30,), dtype, 0, 3), draw((30,), dtype, 0, 3))


@pytest.mark.parametrize(
    "shapes", [((3, 1), (1, 4)), ((1, 4), (3, 4)), ((), (3,)), ((2, 1, 3), (4, 1))]
)
def test_axes_of_size_one_repeat(shapes: Any) -> None:
    check(lambda x, y: jnp.where(x > y, x + y, x * y), *(draw(s, "float32") for s in shapes))


@pytest.mark.each
@pytest.mark.parametrize("dtype", ["int8", "int32", "uint8", "uint32"])
@pytest.mark.parametrize("name", ["shift_left", "shift_right_logical", "shift_right_arithmetic"])
def test_shifts(name: str, dtype: str) -> None:
    values = draw((40,), dtype, -100, 100)
    check(getattr(lax, name), values, draw((40,), dtype, 0, 40))
    by_constant = jnp.asarray(3, dtype)
    check(lambda x: getattr(lax, name)(x, by_constant), values)


@pytest.mark.parametrize("power", [-3, -1, 0, 1, 2, 3, 5, 8])
def test_integer_pow(power: int) -> None:
    check(lambda x: lax.integer_pow(x, power), draw((10,), "float32", 0.5, 2))


def test_integer_powers_of_integers() -> None:
    base, exponent = draw((20,), "int32", -3, 3), draw((20,), "int32", 0, 4)
    check(lambda x, y: x**y, base, exponent)
    check(lambda x, y: lax.pow(x.astype(jnp.float32), y), base, exponent)


@pytest.mark.parametrize(
    "method", [lax.RoundingMethod.AWAY_FROM_ZERO, lax.RoundingMethod.TO_NEAREST_EVEN]
)
def test_round(method: Any) -> None:
    halves = jnp.asarray(
        [-2.5, -1.5, -0.5, 0.5, 1.5, 2.5, 0.49999997, 3.2, np.inf, np.nan], jnp.float32
    )
    check(lambda x: lax.round(x, method), halves)


def test_clamp_and_select() -> None:
    x = draw((4, 5), "float32")
    check(lambda x: lax.clamp(-1.0, x, 2.0), x)
    check(lambda x: lax.clamp(x - 1, x * 2, x + 1), x)
    check(lambda x: jnp.clip(x, 0, None), x)
    which = draw((4, 5), "int32", 0, 3)
    check(lambda w, x: lax.select_n(w, x, x + 1, x * 2, -x), which, x)
    check(lambda w, x: lax.select_n(w, x, x + 1, x * 2), jnp.int32(1), x)
    check(lambda w, x: lax.select_n(w, x, -x), draw((4, 5), "bool"), x)


ALL = ["float32", "float16", "bfloat16", "int8", "int32", "uint8", "uint32", "bool"]


@pytest.mark.each
@pytest.mark.parametrize("source", ALL)
@pytest.mark.parametrize("target", ALL)
def test_convert(source: str, target: str) -> None:
    check(lambda x: lax.convert_element_type(x, target), draw((20,), source, 0, 9))


@pytest.mark.each
@pytest.mark.parametrize("source", FLOATS)
@pytest.mark.parametrize("target", INTS)
def test_floats_that_no_integer_is(source: str, target: str) -> None:
    """They become the nearest there is, and nan 0: what XLA says where C says nothing."""
    limits = [127.5, 128, 255.9, 256, 300, 32767.5, 65535.5, 65536, 2147483520.0, 2**31, 3e9]
    edges = [0.0, 0.5, 2.999, 4294967040.0, 2**32, 1e19, np.inf, np.nan]
    x = jnp.asarray([sign * value for value in [*limits, *edges] for sign in (1, -1)], source)
    check(lambda x: x.astype(target), x)
    np.testing.assert_array_equal(
        np.asarray(stack.compile(lambda x: x.astype(target), x)(x)), np.asarray(x.astype(target))
    )


@pytest.mark.parametrize(
    "pair",
    [
        ("float32", "int32"),
        ("uint32", "float32"),
        ("float32", "uint8"),
        ("bfloat16", "uint16"),
        ("float16", "int8"),
        ("int32", "uint16"),
    ],
)
def test_bitcast(pair: tuple[str, str]) -> None:
    source, target = pair
    check(lambda x: lax.bitcast_convert_type(x, target), draw((6,), source))


def test_bitcast_from_narrow_to_wide() -> None:
    check(lambda x: lax.bitcast_convert_type(x, "float32"), draw((5, 4), "uint8", 0, 60))
    check(lambda x: lax.bitcast_convert_type(x, "int32"), draw((5, 2), "int16"))


def test_bits() -> None:
    x = draw((50,), "int32", -1000, 1000)
    check(lax.population_count, x)
    check(lax.population_count, draw((50,), "uint8", 0, 200))
    check(lax.bitwise_not, x)
    check(lax.clz, x, opaque=["jax:clz"])


@pytest.mark.parametrize("dtype", ["float32"])
def test_nextafter(dtype: str) -> None:
    x, y = np.meshgrid(SPECIAL, SPECIAL)
    # subnormal results are flushed to zero by XLA on the CPU
    keep = (x != 0) & (y != 0)
    check(lax.nextafter, jnp.asarray(x[keep], dtype), jnp.asarray(y[keep], dtype), tolerance=0)


@pytest.mark.parametrize("bits", [(8, 7), (5, 10), (8, 23)])
def test_reduce_precision(bits: tuple[int, int]) -> None:
    check(lambda x: lax.reduce_precision(x, *bits), draw((50,), "float32", -1000, 1000))


def test_erfc_keeps_the_digits_of_its_tail() -> None:
    from math import erfc

    x = jnp.linspace(-4, 9, 200, dtype=jnp.float32)
    captured = check(lax.erfc, x)
    got = captured.func.interpret(np.asarray(x))
    want = np.array([erfc(float(v)) for v in x])
    np.testing.assert_allclose(got, want, rtol=3e-5)


def test_activations() -> None:
    x = draw((64,), "float32", -6, 6)
    for name in (
        "relu",
        "gelu",
        "silu",
        "softplus",
        "elu",
        "selu",
        "sigmoid",
        "log_sigmoid",
        "leaky_relu",
        "hard_tanh",
        "soft_sign",
        "relu6",
        "celu",
        "mish",
        "swish",
    ):
        check(getattr(jax.nn, name), x, tolerance=1e-5)
    check(lambda x: jax.nn.gelu(x, approximate=False), x, tolerance=1e-5)


def test_total_order() -> None:
    x = jnp.asarray(SPECIAL, jnp.float32)
    for kind in ("max", "min"):
        check(lambda x, k=kind: getattr(jnp, k)(x[:3]), x)
    check(lambda x: jnp.searchsorted(jnp.sort(x), x), x)


def test_derivative_of_tanh() -> None:
    """A primitive of its own from JAX 0.11 on; no fallback."""
    x = jnp.linspace(-4, 4, 9, dtype=jnp.float32)
    check(jax.grad(lambda v: jnp.tanh(v).sum()), x)
    check(jax.grad(lambda v: jax.nn.gelu(v, approximate=True).sum()), x)
