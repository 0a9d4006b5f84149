"""Inputs for checks: every command that checks a program, pass or kernel draws them here."""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping, Sequence

import numpy as np

from stack.ir.data import round_bf16
from stack.ir.dim import INF
from stack.ir.func import Func
from stack.ir.node import walk
from stack.ir.ops import lookup
from stack.ir.types import BF16, DType, TensorType

KINDS = {
    "plain": "normal floats, 0 or 1 for integers, which may be indices",
    "ties": "few distinct values, including zeros of both signs",
    "rows": "rows of zeros, of one value, and of tiny values, beside normal ones",
    "offset": "far from 0, and close together",
    "large": "exp overflows or underflows",
    "tiny": "a usual epsilon outweighs them",
    "infinities": "a few infinities, so that most of a result stays finite",
    "nan": "a few nans",
    "zeros": "all values are 0",
    "huge": "products of a few overflow; only where no op sums products",
    "denormal": "all values are below the smallest normal number",
    "mixed": "any magnitude whose square is finite; only where no op sums",
    "limits": "close to the largest number; only where no op sums, since order would matter",
    "integers": "integers of both signs and of any size",
}
GIVEN = "given"  # the program's own arguments
LARGE = 1 << 16  # elements of all arguments: programs with more are checked on `LEADING` alone,
# and so are kernels, which are interpreted statement by statement
LEADING = ("plain", "ties", "rows", "large", "infinities", "nan")
TIES = (-1.5, -0.0, 0.0, 0.5, 1.0)
WHOLE = (-7, -3, -2, -1, 0, 1, 2, 3, 7, 31)
ONE_IN = 16  # elements that are special
MOST = 2
OVERFLOWING = ("mixed", "limits", "huge")
# Kinds that are left out, by kinds of ops: where a sum overflows, its order matters, and so does
# whether its products are rounded.
LEFT_OUT = {
    "reduction": ("mixed", "limits"),
    "contraction": OVERFLOWING,
    "foreign": OVERFLOWING,
}


def sample_sizes(func: Func, rng: np.random.Generator) -> dict[str, int]:
    """A small value within the bounds for every size symbol."""
    sizes: dict[str, int] = {}
    for s in func.symbols:
        step = max(1, s.multiple)
        low = -(-s.low // step)
        high = min(s.high if s.high != INF else 1 << 40, s.low + 6 * step) // step
        sizes[s.name] = step * int(rng.integers(low, max(low, high) + 1))
    return sizes


def random_array(type_: TensorType, rng: np.random.Generator) -> np.ndarray:
    """Normal floats, 0 or 1 for integers (they may be indices), random bools."""
    shape = tuple(int(d) for d in type_.shape if isinstance(d, int))
    dtype: DType = type_.dtype
    if dtype.kind == "b":
        return np.asarray(rng.integers(0, 2, shape) == 1)
    if dtype.is_integer or dtype.kind == "s":
        return np.asarray(rng.integers(0, 2, shape), dtype=dtype.numpy)
    if dtype.kind == "c":
        values = rng.standard_normal(shape) + 1j * rng.standard_normal(shape)
        return np.asarray(values, dtype=dtype.numpy)
    return rounded_to(rng.standard_normal(shape), dtype)


def random_inputs(
    func: Func, seed: int = 0, sizes: Mapping[str, int] | None = None
) -> list[np.ndarray]:
    """One array for each parameter. Size symbols take small values."""
    rng = np.random.default_rng(seed)
    chosen = dict(sizes) if sizes is not None else sample_sizes(func, rng)
    bound = func.bind(chosen) if chosen else func
    return [random_array(p.tensor, rng) for p in bound.params]


def kinds_for(func: Func) -> Sequence[str]:
    """Returns the kinds of random inputs, such as "zeros" or "huge", on which a function without
    size symbols is checked. Large functions and kernels get fewer.
    """
    kinds = {lookup(node.op).kind for _, node in walk(func.body)}
    elements = sum(math.prod(map(int, p.shape)) for p in func.params)  # pyright: ignore[reportArgumentType]
    if elements > LARGE or "memory" in kinds:
        return LEADING
    left_out = {kind for op in kinds for kind in LEFT_OUT.get(op, ())}
    if not any(p.dtype.is_integer for p in func.params):
        left_out.add("integers")
    return tuple(kind for kind in KINDS if kind not in left_out)


def inputs_of(func: Func, kind: str, seed: int = 0) -> list[np.ndarray]:
    """One array for each parameter of a function without size symbols, of one of `KINDS`.

    Only "integers" changes integers, because they may be indices. Bools and complex numbers are
    those of "plain".
    """
    if kind == "plain":
        return random_inputs(func, seed)
    rng = np.random.default_rng([seed, zlib.crc32(kind.encode())])
    return [array_of(p.tensor, kind, rng) for p in func.params]


def array_of(type_: TensorType, kind: str, rng: np.random.Generator) -> np.ndarray:
    """Returns one random array of a type, of a kind of inputs, such as "zeros" or "huge"."""
    plain = random_array(type_, rng)
    if type_.dtype.is_integer and kind == "integers":
        info = np.iinfo(type_.dtype.numpy)
        values = [info.min, info.max, *(v for v in WHOLE if info.min <= v <= info.max)]
        return rng.choice(np.asarray(values, dtype=type_.dtype.numpy), plain.shape)
    if not type_.dtype.is_float or kind in ("plain", "integers"):
        return plain
    return rounded_to(_floats(plain.astype(np.float64), kind, type_.dtype, rng), type_.dtype)


def _floats(plain: np.ndarray, kind: str, dtype: DType, rng: np.random.Generator) -> np.ndarray:
    """Returns random floats of a kind of inputs, such as "huge", in double precision, with the
    shape of `plain`. Some kinds modify the values of `plain`.
    """
    limits, shape = np.finfo(dtype.numpy), plain.shape
    digits = math.log10(float(limits.max))
    match kind:
        case "ties":
            return rng.choice(TIES, shape)
        case "zeros":
            return np.zeros(shape)
        case "rows":
            return _rows(plain, 1e-3 if digits < 10 else 1e-4, rng)
        case "offset":
            return plain + (50 if digits < 10 else 1000)
        case "large":
            return _signs(shape, rng) * rng.uniform(0.5, 1.6, shape) * math.log(float(limits.max))
        case "tiny":
            return _powers(shape, (-6, -2) if digits < 10 else (-8, -3), rng)
        case "huge":
            usual = _powers(shape, (0.37 * digits, 0.42 * digits), rng)
            return _with_few(usual, _powers((MOST,), (0.66 * digits, 0.71 * digits), rng), rng)
        case "denormal":
            least = math.log10(float(limits.smallest_subnormal))
            return _powers(shape, (least + 0.5, math.log10(float(limits.tiny))), rng)
        case "mixed":
            return _powers(shape, (-0.47 * digits, 0.47 * digits), rng)
        case "limits":
            return _signs(shape, rng) * rng.uniform(0.6, 0.99, shape) * float(limits.max)
        case "infinities":
            return _with_few(plain, np.asarray([np.inf, -np.inf]), rng)
        case _:
            return _with_few(plain, np.asarray([np.nan]), rng)


def _signs(shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    return rng.choice((-1.0, 1.0), shape)


def _powers(
    shape: tuple[int, ...], exponents: tuple[float, float], rng: np.random.Generator
) -> np.ndarray:
    """Returns random numbers of both signs, `10 ** e` with e uniform between both `exponents`."""
    return _signs(shape, rng) * 10.0 ** rng.uniform(*exponents, shape)


def _rows(plain: np.ndarray, scale: float, rng: np.random.Generator) -> np.ndarray:
    """Replaces the rows of an array, five kinds in rotation: zeros, one negative value, tiny
    values, one positive value, and unchanged. All elements of a vector get one negative value.
    """
    if plain.ndim < 2 or not plain.size:
        return np.full(plain.shape, -rng.uniform(0.5, 2))
    rows = plain.reshape(-1, plain.shape[-1]).copy()
    rows[0::5] = 0
    rows[1::5] = -rng.uniform(0.5, 2, (len(rows[1::5]), 1))
    rows[2::5] *= scale
    rows[3::5] = rng.uniform(0.5, 2, (len(rows[3::5]), 1))
    return rows.reshape(plain.shape)


def _with_few(array: np.ndarray, values: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Copies an array and replaces some elements at random indices by `values` in rotation: one in
    `ONE_IN` elements, at most `MOST`.
    """
    array = np.array(array)
    count = min(MOST, -(-array.size // ONE_IN))
    for number, place in enumerate(rng.permutation(array.size)[:count]):
        array.reshape(-1)[place] = values[number % len(values)]
    return array


def rounded_to(values: np.ndarray, dtype: DType) -> np.ndarray:
    """Returns values as an array of a type."""
    with np.errstate(over="ignore"):
        array = np.asarray(values, dtype=dtype.numpy)
    return round_bf16(array) if dtype is BF16 else array
