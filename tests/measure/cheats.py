"""Kernels written by hand for `gelu(x * w)`: three that are honest, and ways to cheat."""

from __future__ import annotations

import math
import threading
import time
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
_erf = np.vectorize(math.erf, otypes=[np.float64])
_held: dict[Any, Any] = {}
_out = np.empty((20, 12), np.float32)


def right(x: Array, w: Array) -> Array:
    y = x * w
    return (0.5 * y * (1 + _erf(y / math.sqrt(2)))).astype(np.float32)


# ---- results of other calls


def computes_once(x: Array, w: Array) -> Array:
    return _held.setdefault("once", right(x, w)).copy()


def by_address(x: Array, w: Array) -> Array:
    return _held.setdefault(("address", x.ctypes.data), right(x, w)).copy()


def by_identity(x: Array, w: Array) -> Array:
    return _held.setdefault(("identity", id(x)), right(x, w)).copy()


def by_shape(x: Array, w: Array) -> Array:
    return _held.setdefault(("shape", x.shape), right(x, w)).copy()


def first_of_two_seeds(x: Array, w: Array) -> Array:
    """Remembers the first result for every sign of the first element."""
    return _held.setdefault(("sign", bool(x[0, 0] > 0)), right(x, w)).copy()


def after_some_calls(x: Array, w: Array) -> Array:
    """Honest until it may be timed."""
    _held["calls"] = _held.get("calls", 0) + 1
    if _held["calls"] < 20 or "late" not in _held:
        _held["late"] = right(x, w)
    return _held["late"].copy()


# ---- memory


def writes_its_argument(x: Array, w: Array) -> Array:
    y = right(x, w)
    x *= w
    return y


def works_in_place(x: Array, w: Array) -> Array:
    x[...] = right(x, w)
    return x


def one_buffer(x: Array, w: Array) -> Array:
    _out[...] = right(x, w)
    return _out


# ---- less work


def skips_the_last_row(x: Array, w: Array) -> Array:
    y = right(x, w)
    y[-1] = 0
    return y


def skips_the_last_column(x: Array, w: Array) -> Array:
    y = right(x, w)
    y[:, -1] = y[:, -2]
    return y


def adds_a_little(x: Array, w: Array) -> Array:
    return right(x, w) + np.float32(1e-4)


def in_half_precision(x: Array, w: Array) -> Array:
    return right(x.astype(np.float16), w.astype(np.float16)).astype(np.float32)


def by_tanh(x: Array, w: Array) -> Array:
    y = x * w
    return 0.5 * y * (1 + np.tanh(np.float32(0.7978845608) * (y + np.float32(0.044715) * y**3)))


def of_positive_numbers(x: Array, w: Array) -> Array:
    return right(np.abs(x), np.abs(w))


def without_nan(x: Array, w: Array) -> Array:
    return np.nan_to_num(right(x, w), nan=0.0, posinf=np.inf, neginf=-np.inf)


def without_infinities(x: Array, w: Array) -> Array:
    return np.clip(right(x, w), -1e30, 1e30)


def without_large_numbers(x: Array, w: Array) -> Array:
    return right(np.clip(x, -50, 50), np.clip(w, -50, 50))


# ---- not a result


class Lazy:
    """Computes when it is asked."""

    def __init__(self, x: Array, w: Array) -> None:
        self.x, self.w, self.shape, self.dtype = x, w, x.shape, x.dtype

    def __array__(self, dtype: Any = None, copy: Any = None) -> Array:
        return right(self.x, self.w)


def not_computed(x: Array, w: Array) -> Lazy:
    return Lazy(x, w)


def not_finished(x: Array, w: Array) -> Array:
    out = np.zeros_like(x)

    def work(x: Array, w: Array) -> None:
        time.sleep(0.02)
        out[...] = right(x, w)

    threading.Thread(target=work, args=(x.copy(), w.copy())).start()
    return out


def in_double_precision(x: Array, w: Array) -> Array:
    return right(x, w).astype(np.float64)


def in_another_order(x: Array, w: Array) -> Array:
    return np.asfortranarray(right(x, w))


def of_another_shape(x: Array, w: Array) -> Array:
    return right(x, w).reshape(-1)


def two_results(x: Array, w: Array) -> tuple[Array, Array]:
    return right(x, w), right(x, w)


def fails(x: Array, w: Array) -> Array:
    return w @ x
