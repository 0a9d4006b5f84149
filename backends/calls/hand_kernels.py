"""Captures a hand-written kernel to get its launches, so that XLA's calls need no Python."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch

from stack.frameworks.torch_captures import recovering
from stack.frameworks.torch_private import TorchDispatchMode
from stack.ir.types import TensorType

from ..device.torch_device import TorchDevice
from .captured_nodes import CannotRead, moved_map, steps_of
from .recorded_launches import Recorded, Recording, relocated

Tensor = torch.Tensor
SHIFT = 256  # bytes between the operands of two captures; kernels may rely on this alignment
Run = Callable[..., Any]  # takes and returns tensors


class _Keeping(TorchDispatchMode):
    """Keeps all tensors that operators make, so that no two arrays have the same memory."""

    def __init__(self) -> None:
        super().__init__()
        self.made: list[Tensor] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        values = found if isinstance(found, tuple | list) else (found,)
        self.made += [v for v in values if isinstance(v, Tensor)]
        return found


def recorded(
    run: Run, operands: Sequence[TensorType], results: Sequence[TensorType], device: TorchDevice
) -> Recorded | None:
    """Returns the launches of a kernel for operands of these types; None, with a warning, if they
    are no list of launches on its arrays.

    Runs the kernel once, on zeros, so that it is compiled.
    """
    where = device.where
    try:
        with torch.cuda.device(where), torch.no_grad():
            memory = [_zeros(t, device) for t in operands]
            run(*(_array(m, t, 0, device) for m, t in zip(memory, operands, strict=True)))
            torch.cuda.synchronize(where)
            pairs = [
                _capture(run, [_array(m, t, shift, device) for m, t in zip(memory, operands)],
                         results, device)
                for shift in (0, SHIFT)
            ]  # fmt: skip
            first, second = (recording for recording, _ in pairs)
            found = relocated(first, second, moved_map)
        why = "its launches depend on more than addresses"
    except Exception as error:  # of torch, of the driver or of the kernel: Python can still call it
        found, why = None, str(error).strip().split("\n")[0]
    if found is None:
        warnings.warn(f"a kernel by hand is launched from Python in XLA: {why}", stacklevel=2)
    return found


def _zeros(type_: TensorType, device: TorchDevice) -> Tensor:
    size = int(type_.bytes)  # pyright: ignore[reportArgumentType]
    return torch.zeros(size + SHIFT, dtype=torch.uint8, device=device.where)


def _array(memory: Tensor, type_: TensorType, shift: int, device: TorchDevice) -> Tensor:
    shape = _shape(type_)
    dtype = device.dtype(type_.dtype)
    own = memory[shift : shift + math.prod(shape) * dtype.itemsize]
    return own.view(dtype).view(shape)


def _shape(type_: TensorType) -> tuple[int, ...]:
    return tuple(map(int, type_.shape))  # pyright: ignore[reportArgumentType]


def _capture(
    run: Run, arrays: Sequence[Tensor], results: Sequence[TensorType], device: TorchDevice
) -> tuple[Recording, object]:
    """Returns the launches of one call, and what keeps its memory."""
    graph: Any = torch.cuda.CUDAGraph(keep_graph=True)
    keeping = _Keeping()
    with recovering(device.where):
        with torch.cuda.graph(graph, capture_error_mode="thread_local"), keeping:
            out = run(*arrays)
        steps = steps_of(graph.raw_cuda_graph())
    made = out if isinstance(out, tuple) else (out,)
    own = {t.untyped_storage().data_ptr() for t in arrays}
    kept = {t.untyped_storage().data_ptr(): t for t in keeping.made if t.is_cuda}
    fresh = [t for address, t in kept.items() if address and address not in own]
    buffers = [(t.data_ptr(), t.nbytes) for t in arrays]
    places = {t.untyped_storage().data_ptr(): len(buffers) + i for i, t in enumerate(fresh)}
    buffers += [(t.untyped_storage().data_ptr(), t.untyped_storage().nbytes()) for t in fresh]
    for tensor, type_ in zip(made, results, strict=True):
        is_expected = tuple(tensor.shape) == _shape(type_) and tensor.is_contiguous()
        if not is_expected or tensor.dtype is not device.dtype(type_.dtype):
            raise CannotRead(f"it returns {tensor.dtype}{list(tensor.shape)}, not {type_}")
        if tensor.storage_offset() or tensor.data_ptr() not in places:
            raise CannotRead("a result is no array of its own")
    numbers = [places[t.data_ptr()] for t in made]
    if len(set(numbers)) < len(numbers):
        raise CannotRead("two results are one array")
    return Recording(steps, buffers, numbers), (graph, keeping, made)
