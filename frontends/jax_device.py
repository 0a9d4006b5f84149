"""JAX arrays that stay on their GPU: where they are, and their memory shared through DLPack."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Any

import jax

from stack.errors import StackError
from stack.frontends.jax_words import to_words
from stack.frontends.lax import dtype_of
from stack.ir.types import DType


def device_of(values: Iterable[Any]) -> str:
    """Where the arrays among values are, "cpu" without any.

    Raises StackError for arrays that are spread over several devices.
    """
    found = {_name(d) for v in values if isinstance(v, jax.Array) for d in v.devices()}
    found.discard("cpu")
    if len(found) > 1:
        raise StackError(f"one program on several devices: {', '.join(sorted(found))}; put it on"
                         " one with jax.device_put")  # fmt: skip
    return found.pop() if found else "cpu"


@cache
def _name(device: Any) -> str:
    """A JAX device by the name that other frameworks have for it."""
    if device.platform == "cpu":
        return "cpu"
    kind = "cuda" if device.platform in ("gpu", "cuda") else device.platform
    return f"{kind}:{device.local_hardware_id or 0}"


def to_device(array: Any, dtype: DType, device: str) -> jax.Array:
    """A JAX array on the device. Raises TypeError where the element type is not `dtype`."""
    array = to_words(array)
    found = dtype_of(array.dtype)
    if found != dtype:
        raise TypeError(f"expected {dtype} values, got {found}")
    if isinstance(array, jax.Array) and device_of([array]) == device:
        return array
    with jax.enable_x64(True):
        target = next(d for d in jax.local_devices() if _name(d) == device)
        return jax.device_put(array, target)


def from_device(array: Any) -> jax.Array:
    """A JAX array over another library's memory; 64-bit types stay 64 bits wide."""
    if array.dtype.itemsize < 8:  # the setting takes as long as the rest
        return jax.dlpack.from_dlpack(array)
    with jax.enable_x64(True):
        return jax.dlpack.from_dlpack(array)
