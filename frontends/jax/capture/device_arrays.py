"""JAX arrays on a GPU: their device, and sharing their memory through DLPack."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Any

import jax

from stack.errors import StackError
from stack.frontends.jax.jaxpr.element_words import to_words
from stack.frontends.jax.lax.lowering import dtype_of
from stack.ir.types import DType


def device_of(values: Iterable[Any]) -> str:
    """Returns the device of the arrays among values; "cpu" if there are none.

    Raises StackError for arrays on several devices.
    """
    found = {_name(d) for v in values if isinstance(v, jax.Array) for d in v.devices()}
    found.discard("cpu")
    if len(found) > 1:
        raise StackError(f"one program on several devices: {', '.join(sorted(found))}; put it on"
                         " one with jax.device_put")  # fmt: skip
    return found.pop() if found else "cpu"


@cache
def _name(device: Any) -> str:
    """Returns the name of a JAX device as torch spells it, such as "cuda:1" or "cpu"."""
    if device.platform == "cpu":
        return "cpu"
    kind = "cuda" if device.platform in ("gpu", "cuda") else device.platform
    return f"{kind}:{device.local_hardware_id or 0}"


def to_device(array: Any, dtype: DType, device: str) -> jax.Array:
    """Returns a JAX array on the device. Raises TypeError if the element type is not `dtype`."""
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
    """Wraps another library's memory as a JAX array; 64-bit types keep 64 bits."""
    if array.dtype.itemsize < 8:  # avoids the setting, which takes as long as the rest
        return jax.dlpack.from_dlpack(array)
    with jax.enable_x64(True):
        return jax.dlpack.from_dlpack(array)
