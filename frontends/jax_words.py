"""JAX arrays of what the IR has no elements for, as arrays with axes of words.

A typed random key is its words, a complex number its real and its imaginary part.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import jax
import numpy as np
from jax._src import core

# asked of every array in every call
_is_of = cache(jax.numpy.issubdtype)


def is_key(aval: Any) -> bool:
    """Whether a value is an array of typed random keys."""
    return _is_of(getattr(aval, "dtype", np.float32), jax.dtypes.extended)


def is_complex(aval: Any) -> bool:
    """Whether a value is an array of complex numbers."""
    return not is_key(aval) and _is_of(aval.dtype, np.complexfloating)


def has_words(aval: Any) -> bool:
    """Whether the IR holds a value as words."""
    return is_key(aval) or is_complex(aval)


def to_words(array: Any) -> Any:
    """The words of an array; itself where its elements are such. A view, on the host."""
    if is_key(array):
        return jax.random.key_data(array)
    if not is_complex(array):
        return array
    if not _is_on_host(array):
        return jax.numpy.stack((array.real, array.imag), axis=-1)
    held: Any = np.ascontiguousarray(array).reshape(-1)
    return held.view(held.real.dtype).reshape(*array.shape, 2)


def from_words(array: Any, dtype: Any) -> Any:
    """An array with elements of JAX's `dtype`, from its words; itself where it has none."""
    if jax.numpy.issubdtype(dtype, jax.dtypes.extended):
        return jax.random.wrap_key_data(array, impl=dtype._impl.name)
    if not jax.numpy.issubdtype(dtype, np.complexfloating):
        return array
    if not _is_on_host(array):
        return jax.lax.complex(array[..., 0], array[..., 1])
    held = np.ascontiguousarray(array).reshape(-1).view(dtype)
    with jax.enable_x64(True):
        return jax.numpy.asarray(held.reshape(array.shape[:-1]))


def _is_on_host(array: Any) -> bool:
    if isinstance(array, core.Tracer):
        return False
    return isinstance(array, np.ndarray) or all(d.platform == "cpu" for d in array.devices())
