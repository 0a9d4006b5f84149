"""NumPy's `%` and `//` from the IR's remainder, which has the dividend's sign as in C.

NumPy's remainder has the sign of the divisor. For integers, division by 0 gives 0.
"""

from __future__ import annotations

from typing import Any


def floored(np: Any, x: Any, y: Any) -> tuple[Any, Any]:
    """Returns the quotient rounded down, and the remainder.

    Args:
        np: NumPy's API for the type of `x`.
        x: an array.
        y: an array of the same element type, which broadcasts with x.
    """
    is_float, is_signed = x.dtype.is_float, x.dtype.kind != "u"
    rest = np.fmod(x, y)
    crosses = (rest != 0) & ((rest < 0) != (y < 0)) if is_signed else None
    if is_float:
        return _quotient(np, x, y, rest, crosses), _remainder(np, y, rest, crosses)
    whole = np.truncated_divide(x, y)
    if crosses is not None:
        whole, rest = np.where(crosses, whole - 1, whole), np.where(crosses, rest + y, rest)
    return np.where(y == 0, 0, whole), np.where(y == 0, 0, rest)


def _remainder(np: Any, y: Any, rest: Any, crosses: Any) -> Any:
    zero = np.where(y < 0, np.full(y.shape, -0.0, y.dtype), 0.0)
    return np.where(rest == 0, zero, np.where(crosses, rest + y, rest))


def _quotient(np: Any, x: Any, y: Any, rest: Any, crosses: Any) -> Any:
    """Returns the floored quotient of floats. `(x - rest) / y` is an integer up to rounding, so it
    is rounded to that integer, less 1 where `crosses`: where the signs of remainder and divisor
    differ.
    """
    plain = x / y
    exact = (x - rest) / y
    exact = np.where(crosses, exact - 1, exact)
    down = np.floor(exact)
    whole = np.where(exact - down > 0.5, down + 1, down)
    return np.where(y == 0, plain, np.where(exact == 0, plain * 0, whole))
