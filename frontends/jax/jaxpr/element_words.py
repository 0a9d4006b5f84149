"""JAX arrays of element types that the IR lacks, as arrays with a last axis of words.

A typed random key becomes its words, a complex number its real and imaginary part.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import jax
import numpy as np
from jax.core import Tracer

from stack.frameworks.jax_private import key_generator

# cached: called for every array of every call
_is_of = cache(jax.numpy.issubdtype)


def is_key(aval: Any) -> bool:
    """True for an array of typed random keys."""
    return _is_of(getattr(aval, "dtype", np.float32), jax.dtypes.extended)


def is_complex(aval: Any) -> bool:
    """True for an array of complex numbers."""
    return not is_key(aval) and _is_of(aval.dtype, np.complexfloating)


def has_words(aval: Any) -> bool:
    """True if the IR represents a value as words."""
    return is_key(aval) or is_complex(aval)


def to_words(array: Any) -> Any:
    """Converts an array to words; other arrays are returned unchanged. A view on the CPU."""
    if is_key(array):
        return jax.random.key_data(array)
    if not is_complex(array):
        return array
    if not _is_on_host(array):
        return jax.numpy.stack((array.real, array.imag), axis=-1)
    held: Any = np.ascontiguousarray(array).reshape(-1)
    return held.view(held.real.dtype).reshape(*array.shape, 2)


def from_words(array: Any, dtype: Any) -> Any:
    """Converts words to elements of JAX's `dtype`; returns arrays of other types unchanged."""
    if jax.numpy.issubdtype(dtype, jax.dtypes.extended):
        return jax.random.wrap_key_data(array, impl=key_generator(dtype).name)
    if not jax.numpy.issubdtype(dtype, np.complexfloating):
        return array
    if not _is_on_host(array):
        return jax.lax.complex(array[..., 0], array[..., 1])
    held = np.ascontiguousarray(array).reshape(-1).view(dtype)
    with jax.enable_x64(True):
        return jax.numpy.asarray(held.reshape(array.shape[:-1]))


def _is_on_host(array: Any) -> bool:
    if isinstance(array, Tracer):
        return False
    return isinstance(array, np.ndarray) or all(d.platform == "cpu" for d in array.devices())
