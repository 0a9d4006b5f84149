"""Values of a type to try: all of them, or those at which programs are most often wrong."""

from __future__ import annotations

import math

import numpy as np

from stack.ir.types import DType
from stack.rewrite.inputs import rounded_to
from stack.testing.rules.ordinals import from_ordinals, largest

SMALL = 16  # bits of types of which all values are tried


def every_value(dtype: DType) -> np.ndarray | None:
    """Returns all values of a type of 1, 8 or 16 bits, without the payloads of nans; None for wider
    types.
    """
    if dtype.kind == "b":
        return np.asarray([False, True])
    if dtype.bits > SMALL or dtype.kind not in "iuf":
        return None
    if dtype.kind == "f":
        last = largest(dtype)
        finite = from_ordinals(np.arange(-last, last + 1), dtype)
        return np.append(finite, np.asarray([-0.0, np.inf, -np.inf, np.nan], finite.dtype))
    info = np.iinfo(dtype.numpy)
    return np.arange(info.min, info.max + 1).astype(dtype.numpy)


def special_values(dtype: DType) -> np.ndarray:
    """Returns the values of a type at which programs are most often wrong, simple ones first: small
    numbers, powers of two and their neighbours, the limits, zeros of both signs, infinities, nan.
    """
    if dtype.kind == "b":
        return np.asarray([False, True])
    if dtype.is_integer:
        info = np.iinfo(dtype.numpy)
        sizes = [0, 1, 2, 3, 5, 7, 8, 31, *(1 << i for i in range(4, dtype.bits))]
        both = [s * (v + away) for v in sizes for s in (1, -1) for away in (0, -1, 1)]
        held = dict.fromkeys(v for v in (*both, info.min, info.max) if info.min <= v <= info.max)
        return np.asarray([*held], dtype=dtype.numpy)
    limits = np.finfo(dtype.numpy)
    sizes = [0.0, 1.0, 2.0, 0.5, 3.0, 10.0, 0.1, 100.0, math.pi, math.log(float(limits.max))]
    powers = [2.0**i for i in (4, 8, 11, 15, 24, 31, 53, 63) if 2.0**i < float(limits.max)]
    powers += [1 / p for p in powers]
    ends = [limits.max, float(limits.max) ** 0.5, limits.tiny, limits.smallest_subnormal]
    finite = np.asarray([s * float(v) for v in (*sizes, *powers, *ends) for s in (1, -1)])
    held = rounded_to(finite, dtype)
    with np.errstate(over="ignore"):
        near = [np.nextafter(held, held.dtype.type(to)) for to in (np.inf, -np.inf)]
    odd = np.asarray([np.inf, -np.inf, np.nan], held.dtype)
    return rounded_to(np.concatenate([held, odd, *near]), dtype)
