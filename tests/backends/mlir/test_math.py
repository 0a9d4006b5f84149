"""Elementary functions against fp64 NumPy, over a dense sweep of all f32 bit patterns."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import numpy as np
import pytest

from stack.backends.mlir import jit
from stack.backends.mlir import math as elementary
from stack.target import cpu_at_hand

pytest.importorskip("torch_mlir")

_erf = np.vectorize(math.erf)
REFERENCE: dict[str, Callable[..., np.ndarray]] = {
    "exp": np.exp,
    "exp2": np.exp2,
    "expm1": np.expm1,
    "log": np.log,
    "log2": np.log2,
    "log10": np.log10,
    "log1p": np.log1p,
    "tanh": np.tanh,
    "erf": _erf,
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "sin": np.sin,
    "cos": np.cos,
    "tan": np.tan,
    "asin": np.arcsin,
    "acos": np.arccos,
    "atan": np.arctan,
    "sinh": np.sinh,
    "cosh": np.cosh,
    "asinh": np.arcsinh,
    "acosh": np.arccosh,
    "atanh": np.arctanh,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "pow": np.power,
}
SCALEF = "avx512f" in cpu_at_hand().features  # whether this CPU has the instruction
ULPS = {"tanh": 1.3, "sigmoid": 2.3, "log10": 2.3}


@functools.cache
def kernel(name: str, element: str, lanes: int, scalef: bool) -> jit.NativeKernel:
    """out[i] = f(a[i], ...) over n elements; n is a multiple of the lanes."""
    f = elementary.Function(name, element, lanes)
    t, size = elementary.vector(element, lanes), 4 if element == "f32" else 8
    names = [f"%a{k}" for k in range(f.arity)]
    loads = "".join(
        f"""
    %p{k} = llvm.getelementptr %b{k}[%i] : (!llvm.ptr, i64) -> !llvm.ptr, {element}
    %a{k} = llvm.load %p{k} {{alignment = {size} : i64}} : !llvm.ptr -> {t}"""
        for k in range(f.arity)
    )
    slots = "".join(
        f"""
  %s{k} = llvm.getelementptr %table[{k}] : (!llvm.ptr) -> !llvm.ptr, i64
  %b{k} = llvm.load %s{k} : !llvm.ptr -> {"i64" if k > f.arity else "!llvm.ptr"}"""
        for k in range(f.arity + 2)
    )
    text = f"""
{elementary.definitions([f], scalef)}
llvm.func @apply(%table: !llvm.ptr) {{{slots}
  %zero = arith.constant 0 : i64
  %step = arith.constant {lanes} : i64
  scf.for %i = %zero to %b{f.arity + 1} step %step : i64 {{{loads}
    {elementary.call("%r", name, element, lanes, *names)}
    %q = llvm.getelementptr %b{f.arity}[%i] : (!llvm.ptr, i64) -> !llvm.ptr, {element}
    llvm.store %r, %q {{alignment = {size} : i64}} : {t}, !llvm.ptr
  }}
  llvm.return
}}
"""
    return jit.build(text, ["apply"])["apply"]


def apply(name: str, *arrays: np.ndarray, lanes: int = 16, scalef: bool = SCALEF) -> np.ndarray:
    out = np.empty_like(arrays[0])
    element = "f32" if out.dtype == np.float32 else "f64"
    run = kernel(name, element, lanes, scalef)
    run(*(a.ctypes.data for a in arrays), out.ctypes.data, len(out))
    return out


def ulps(got: np.ndarray, want: np.ndarray) -> np.ndarray:
    """Error in units of the last place; infinite where inf or nan do not agree."""
    with np.errstate(over="ignore"):
        near = want.astype(np.float32)
    unit = np.spacing(np.abs(np.where(np.isfinite(near), near, 1)).astype(np.float32))
    both = np.isfinite(near) & np.isfinite(got)
    same = (np.isnan(near) & np.isnan(got)) | (near == got)
    error = np.abs(got.astype(np.float64) - np.where(both, want, 0)) / unit.astype(np.float64)
    return np.where(both, error, np.where(same, 0, np.inf))


@functools.cache
def sweep() -> np.ndarray:
    """About 300,000 patterns of every sign and exponent, nan included, signalling nan not."""
    x = np.arange(0, 2**32, 14143, dtype=np.uint64).astype(np.uint32)
    x |= np.where((x & 0x7F800000) == 0x7F800000, np.uint32(0x400000), np.uint32(0))
    return x[: len(x) // 64 * 64].view(np.float32)


@functools.cache
def everyday() -> np.ndarray:
    """Dense where activations live, and both sides of zero of log1p and expm1."""
    rng = np.random.default_rng(0)
    parts = [rng.standard_normal(1 << 15) * s for s in (1e-4, 0.1, 1, 4, 30)]
    parts.append(1 + rng.standard_normal(1 << 15) * 0.1)
    return np.concatenate(parts).astype(np.float32)


@pytest.mark.every(3)
@pytest.mark.parametrize(
    "lanes, scalef", [(16, SCALEF), (64, SCALEF), (16, False), (8, SCALEF), (1, SCALEF)]
)
@pytest.mark.parametrize("name", [n for n in REFERENCE if n != "pow"])
def test_unary(name: str, lanes: int, scalef: bool) -> None:
    for x in (sweep(), everyday()):
        with np.errstate(all="ignore"):
            want = REFERENCE[name](x.astype(np.float64))
        got = apply(name, x, lanes=lanes, scalef=scalef)
        error = ulps(got, want)
        if name == "sigmoid":  # exp(-x) overflows before the result is subnormal: 0 is right enough
            error = np.where(np.abs(want) < 2.0**-126, 0, error)
        worst = int(np.argmax(error))
        assert error[worst] <= ULPS.get(name, 1.6), (x[worst], got[worst], want[worst])


@pytest.mark.parametrize("scalef", sorted({SCALEF, False}))
@pytest.mark.parametrize("name", ["erf", "tanh", "sigmoid"])
def test_functions_reach_1(name: str, scalef: bool) -> None:
    """Far from 0 the result is 1 itself: a program may compare it, or truncate it to an integer."""
    x = np.linspace(17.5, 127, 64).astype(np.float32)
    np.testing.assert_array_equal(apply(name, x, scalef=scalef), np.ones(64))
    if name != "sigmoid":
        np.testing.assert_array_equal(apply(name, -x, scalef=scalef), -np.ones(64))


@pytest.mark.parametrize("lanes", [1, 9, 33, 64])
def test_erf_has_the_same_bits_on_any_number_of_lanes(lanes: int) -> None:
    x = everyday()[: lanes * 1600].copy()
    ends = [0, -0.0, 3.92, 3.925, -4, 1e30, np.inf, -np.inf, np.nan, 1e-40, 0.12677419]
    x[: len(ends)] = ends
    got = apply("erf", x, lanes=lanes)
    np.testing.assert_array_equal(got.view(np.int32), apply("erf", x).view(np.int32))
    assert ulps(got, _erf(x.astype(np.float64))).max() <= 1.3


@pytest.mark.parametrize("lanes", [16, 1])
def test_pow(lanes: int) -> None:
    rng = np.random.default_rng(1)
    n = 1 << 16
    x = np.exp(rng.uniform(-30, 30, n)).astype(np.float32)
    y = rng.uniform(-6, 6, n).astype(np.float32)
    special = np.array([0, -0.0, 1, -1, 2, -2, 0.5, 3, -3, np.inf, -np.inf, np.nan, 1e-40, 1e38])
    grid = np.array(np.meshgrid(special, special), np.float32).reshape(2, -1)
    x[: grid.shape[1]], y[: grid.shape[1]] = grid
    with np.errstate(all="ignore"):
        want = np.power(x.astype(np.float64), y.astype(np.float64))
    assert ulps(apply("pow", x, y, lanes=lanes), want).max() <= 1.0


@pytest.mark.parametrize("lanes", [16, 8, 1])
@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_fmod_has_every_bit(kind: type[np.floating], lanes: int) -> None:
    """Quotients just below an integer round to it; that is one too many."""
    rng = np.random.default_rng(3)
    bits = np.uint32 if kind is np.float32 else np.uint64
    patterns = rng.integers(0, np.iinfo(bits).max, (2, 1 << 14), bits).view(kind)
    y = rng.standard_normal(1 << 14).astype(kind)
    whole = (rng.integers(1, 1 << 20, 1 << 14).astype(kind) * y).astype(kind)
    below = np.nextafter(whole, kind(0))
    special = np.array([0, -0.0, 1, -3, 0.1, np.inf, -np.inf, np.nan, 1e-40, 1e30, 2**24 + 2])
    grid = np.array(np.meshgrid(special, special), kind).reshape(2, -1)
    pairs = [patterns, np.stack([whole, y]), np.stack([below, y]), np.stack([1e-38 * y, y])]
    pairs = [p.astype(kind) for p in (*pairs, np.tile(grid, 16))]
    with np.errstate(all="ignore"):
        for a, b in pairs:
            got, want = apply("fmod", a, b, lanes=lanes), np.fmod(a, b)
            same = (got.view(bits) == want.view(bits)) | (np.isnan(got) & np.isnan(want))
            assert same.all(), (a[~same], b[~same], got[~same], want[~same])


INVERSE = ("asin", "acos", "atan", "sinh", "cosh", "asinh", "acosh", "atanh")


@pytest.mark.parametrize("lanes", [16, 9, 1])
@pytest.mark.parametrize("name", ["tan", *INVERSE])
def test_ends_and_zeros(name: str, lanes: int) -> None:
    """Domains end in nan, poles are infinite, and odd functions keep the sign of a zero."""
    inf, tiny = np.inf, np.float32(1e-45)
    ends = [0, -0.0, tiny, -tiny, 1e-39, 1, -1, 0.5, -0.5, 2, -2, inf, -inf, np.nan, 88.8, -88.8]
    ends += [89.4, -89.4, 89.5, 1e6, 1e19, -1e19, 3.4e38, -3.4e38, 0.41421357, 1.0000001]
    ends += [0.99999994, -0.99999994, 1.5707964, 3.1415927, -1.5707964, 1e-4, -1e-4]
    x = np.resize(np.array(ends, np.float32), 36 if lanes == 9 else 48)
    with np.errstate(all="ignore"):
        want = REFERENCE[name](x.astype(np.float64))
    got = apply(name, x, lanes=lanes)
    assert ulps(got, want).max() <= 1.6, (x, got, want)
    is_number = ~np.isnan(want)
    np.testing.assert_array_equal(np.signbit(got)[is_number], np.signbit(want)[is_number])


@pytest.mark.parametrize("name", ["tan", *INVERSE])
def test_no_function_is_lane_by_lane(name: str) -> None:
    """Functions of f32 have vector code, except for angles that are too large: libm has those."""
    text = elementary.definitions([elementary.Function(name, "f32", 16)], SCALEF)
    assert text.count("llvm.func @") == (name == "tan")


@pytest.mark.parametrize("lanes", [16, 9, 1])
def test_atan2(lanes: int) -> None:
    rng = np.random.default_rng(4)
    n = 9 << 12
    patterns = rng.integers(0, 2**32, (2, n), np.uint32)
    patterns |= np.where((patterns & 0x7F800000) == 0x7F800000, 0x400000, 0).astype(np.uint32)
    y, x = rng.standard_normal((2, n)).astype(np.float32)
    special = np.array([0, -0.0, 1, -1, np.inf, -np.inf, np.nan, 1e-45, -1e-45, 1e-38, 3e38, -3e38])
    grid = np.array(np.meshgrid(special, special), np.float32).reshape(2, -1)
    for a, b in (patterns.view(np.float32), (y, x), (y, y), (-y, y), np.tile(grid, 9)):
        with np.errstate(all="ignore"):
            want = np.arctan2(a.astype(np.float64), b.astype(np.float64))
        got = apply("atan2", a.copy(), b.copy(), lanes=lanes)
        assert ulps(got, want).max() <= 1.6
        is_number = ~np.isnan(want)
        np.testing.assert_array_equal(np.signbit(got)[is_number], np.signbit(want)[is_number])


@pytest.mark.parametrize("name", ["sin", "cos", "tan"])
def test_huge_angles_go_to_libm(name: str) -> None:
    x = np.array([1e8, 1e10, 3.4e38, -1e20, np.inf, np.nan, 9.9e7, 1, *range(8)], np.float32)
    with np.errstate(all="ignore"):
        want = REFERENCE[name](x.astype(np.float64))
    assert ulps(apply(name, x), want).max() <= 1.6


@pytest.mark.parametrize("name", ["exp", "tanh", "erf", "sigmoid", "rsqrt", "sin", "log1p"])
@pytest.mark.parametrize("lanes", [8, 1])
def test_f64(name: str, lanes: int) -> None:
    x = np.abs(np.random.default_rng(2).standard_normal(1024))
    np.testing.assert_allclose(apply(name, x, lanes=lanes), REFERENCE[name](x), rtol=1e-14)


OF_F64 = ("exp", "expm1", "log", "log2", "log10", "log1p", "sigmoid", "sinh", "cosh", "tanh")


@pytest.mark.parametrize("lanes", [8, 3, 1])
@pytest.mark.parametrize("name", OF_F64)
def test_f64_against_longer_floats(name: str, lanes: int) -> None:
    rng = np.random.default_rng(7)
    n = 3 << 13
    patterns = rng.integers(0, 2**64, n, np.uint64).view(np.float64)
    ends = [0, -0.0, 5e-324, -5e-324, 1e-310, 1, -1, np.inf, -np.inf, np.nan, 709.78, 709.79, -750]
    ends += [710.4758, -710.4758, 710.476, -745.13, -746, 1e300, -1e300, 2.0**53, 0.7, 0.5**0.5]
    parts = (patterns, rng.uniform(-1, 1, n), rng.standard_normal(n) * 4, rng.uniform(-760, 760, n))
    for x in (*parts, 1 + rng.exponential(0.5, n), np.exp2(rng.uniform(-60, 3, n)), ends):
        x = np.resize(np.asarray(x, np.float64), n)
        x = np.where(np.isnan(x), np.nan, x)  # of nan only quiet ones
        with np.errstate(all="ignore"):
            want = REFERENCE[name](x.astype(np.longdouble))
            got, near = apply(name, x, lanes=lanes), want.astype(np.float64)
            unit = np.spacing(np.abs(near))
            error = np.where(got == near, 0, np.abs(got - want) / unit)
        error = np.where(np.isnan(got) & np.isnan(near), 0, error)
        if name == "sigmoid":  # exp(-x) overflows before the result is subnormal
            error = np.where(np.abs(want) < 2.0**-1022, 0, error)
        assert (error <= 2).all(), (x[~(error <= 2)], got[~(error <= 2)], want[~(error <= 2)])
        is_number = ~np.isnan(near)
        np.testing.assert_array_equal(np.signbit(got)[is_number], np.signbit(near)[is_number])


@pytest.mark.parametrize("name", OF_F64)
def test_no_such_function_of_f64_is_lane_by_lane(name: str) -> None:
    text = elementary.definitions([elementary.Function(name, "f64", 8)], SCALEF)
    assert "llvm.func @" not in text


@pytest.mark.parametrize("name", ["erfc", "cbrt"])
def test_the_rest_is_libm(name: str) -> None:
    x = np.linspace(-2, 2, 64, dtype=np.float32)
    reference = {"erfc": np.vectorize(math.erfc)}.get(name) or getattr(np, name)
    np.testing.assert_allclose(apply(name, x), reference(x.astype(np.float64)), rtol=3e-7)


def test_definitions_are_stable_and_written_once() -> None:
    fs = [elementary.Function(n, "f32", 16) for n in ("sin", "exp", "exp", "cos")]
    text = elementary.definitions(fs, True)
    assert text == elementary.definitions(reversed(fs), True)
    assert text.count("@stack_exp_f32x16(") == 1
    assert text.count("llvm.func @sinf") == 1


def test_unknown_functions_are_refused() -> None:
    assert elementary.supported("exp") and not elementary.supported("frobnicate")
    with pytest.raises(KeyError, match="frobnicate"):
        elementary.definitions([elementary.Function("frobnicate", "f32", 16)], True)


def test_constants_keep_every_bit() -> None:
    assert elementary.constant(float("-inf"), "f32", 1) == "arith.constant 0xFF800000 : f32"
    assert "dense<0x3FF0000000000000> : vector<8xf64>" in elementary.constant(1.0, "f64", 8)


@pytest.mark.parametrize("name, least", [("exp", "0xC2D20000"), ("exp2", "0xC3170000")])
def test_what_underflows_takes_no_part(name: str, least: str) -> None:
    """An instruction whose result underflows takes some hundred cycles."""
    text = elementary.definitions([elementary.Function(name, "f32", 16)], True)
    assert f"arith.constant dense<{least}>" in text
    assert text.count("arith.cmpf uge") == text.count("mask.scalef") == 1


@pytest.mark.parametrize("element", ["f32", "f64"])
@pytest.mark.parametrize("lanes", [1, 8, 16])
def test_erfinv_up_to_its_ends(element: str, lanes: int) -> None:
    """Against 40 digits: near 0, in the middle, and up to the numbers next to 1."""
    mpmath = pytest.importorskip("mpmath")
    mpmath.mp.dps = 40
    dtype = np.float32 if element == "f32" else np.float64
    eps, rng = np.finfo(dtype).eps, np.random.default_rng(0)
    parts = [10 ** rng.uniform(-20, 0, 60), rng.uniform(0, 1, 100), 1 - eps * 2.0 ** np.arange(60)]
    x = np.concatenate(parts).astype(dtype)
    x = np.resize(x[(x < 1) & (x > 0)], 208) * rng.choice(np.array([-1, 1], dtype), 208)
    got = apply("erfinv", np.concatenate([x, [1 - eps / 2] * 16]).astype(dtype), lanes=lanes)[:208]
    want = [mpmath.erfinv(float(v)) for v in x]
    units = np.spacing(np.abs([float(w) for w in want]).astype(dtype)).astype(np.float64)
    error = [abs(float(mpmath.mpf(float(g)) - w)) for g, w in zip(got, want, strict=True)]
    assert np.max(error / units) <= 2
    ends = np.resize(np.array([0.0, -0.0, 1, -1, 1.5, -2, np.nan, np.inf], dtype), 16)
    known = np.resize(np.array([0.0, -0.0, np.inf, -np.inf, *[np.nan] * 4], dtype), 16)
    found = apply("erfinv", ends, lanes=lanes)
    np.testing.assert_array_equal(found, known)
    np.testing.assert_array_equal(np.signbit(found[:4]), np.signbit(known[:4]))
