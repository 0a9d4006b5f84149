"""Arrays of one device: allocation with readable errors, upload and download."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from stack.errors import StackError
from stack.frameworks.torch_private import empty_on_cpu, empty_on_cuda
from stack.frontends.torch.tensors.arrays import TORCH_DTYPE, from_numpy, to_numpy
from stack.ir.types import TensorType

Tensor = torch.Tensor
# the allocators of Inductor's code: they skip the dispatcher, which costs more than the allocation
_EMPTY: dict[str, Callable[[tuple[int, ...], tuple[int, ...], torch.dtype], Tensor]] = {
    "cpu": empty_on_cpu,
    "cuda": empty_on_cuda,
}
ALIGNMENT = 16  # bytes: required of an address by vector loads and TMA descriptors


def shape_of(type_: TensorType) -> tuple[int, ...]:
    """Returns the shape of a tensor type whose sizes are all numbers."""
    return tuple(int(s) for s in type_.shape)  # pyright: ignore[reportArgumentType]


def allocator(
    shape: tuple[int, ...], dtype: torch.dtype, device: torch.device, what: str
) -> Callable[[], Tensor]:
    """Returns an allocator of uninitialized memory on a device, the current one of its kind.

    The allocator raises StackError with the name of the value and the size it asked for.
    """
    empty = _EMPTY[device.type]
    strides = tuple(math.prod(max(s, 1) for s in shape[i + 1 :]) for i in range(len(shape)))

    def allocate() -> Tensor:
        try:
            return empty(shape, strides, dtype)
        except RuntimeError as error:
            asked = math.prod(shape) * dtype.itemsize
            raise StackError(memory_text(error, asked, device, what)) from error

    return allocate


def memory_text(error: BaseException, asked: int, device: torch.device, what: str) -> str:
    """An error text: the value that did not fit, its size, and the memory that is left."""
    text = f"out of memory on {device}: {what} needs {asked} bytes"
    if device.type == "cuda" and torch.cuda.is_available():
        free, total = torch.cuda.mem_get_info(device)
        held = torch.cuda.memory_reserved(device)
        text += f"; {free} of {total} are free, this process holds {held}"
    first = str(error).strip().split("\n")[0]
    return f"{text}; smaller inputs or freed tensors make room ({first})"


def upload(arrays: Sequence[np.ndarray], types: Sequence[TensorType], device: torch.device) -> Any:
    """Copy storage arrays to tensors on the device."""
    found: list[Tensor] = []
    for array, type_ in zip(arrays, types, strict=True):
        held = from_numpy(np.asarray(array, order="C"), type_.dtype)
        found.append(held.reshape(shape_of(type_)).to(device))
    return found


def download(tensors: Sequence[Tensor], types: Sequence[TensorType]) -> list[np.ndarray]:
    """Copy tensors to storage arrays that nobody else references."""
    pairs = zip(tensors, types, strict=True)
    return [np.array(to_numpy(x, t.dtype), order="C", copy=True) for x, t in pairs]


def adopt(arrays: Sequence[Any], types: Sequence[TensorType], device: torch.device) -> list[Tensor]:
    """Takes arrays of any library on this device as tensors, through DLPack, without a copy.

    An array that is not dense or not aligned is copied on the device.
    Raises TypeError that names an array on another device or of another type.
    """
    found: list[Tensor] = []
    on_gpu = device.type == "cuda"
    for array, type_ in zip(arrays, types, strict=True):
        held = array if isinstance(array, Tensor) else torch.from_dlpack(array)
        wanted = TORCH_DTYPE[type_.dtype]
        # fast path, run for every array of every call: comparing devices would create objects
        elsewhere = held.is_cuda != on_gpu or not (held.is_cuda or held.is_cpu)
        if held.dtype is not wanted or elsewhere:
            raise TypeError(
                f"array {len(found)} is {held.dtype} on {held.device}, not {wanted} on {device}"
            )
        if not held.is_contiguous():
            held = held.contiguous()
        if held.data_ptr() % ALIGNMENT:
            held = held.clone()
        found.append(held)
    return found
