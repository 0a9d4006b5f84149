"""The data address of a NumPy array, which every call needs for every array."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable

import numpy as np

_WORD = ctypes.c_size_t
_HEAD = object.__basicsize__  # the object header; in NumPy arrays, the data address follows it


def _read(array: np.ndarray) -> int:
    return _WORD.from_address(id(array) + _HEAD).value


def _asked(array: np.ndarray) -> int:
    return array.__array_interface__["data"][0]


def _fastest() -> Callable[[np.ndarray], int]:
    """Returns the fastest function from an array to its data address.

    If the object layout is as expected, it reads the address from the array object, in a sixth of
    the time of `__array_interface__`.
    """
    arrays = np.zeros(3), np.zeros((4, 2), np.float32)[1:]
    is_known = sys.implementation.name == "cpython" and all(_read(a) == _asked(a) for a in arrays)
    return _read if is_known else _asked


address = _fastest()
