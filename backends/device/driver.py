"""The CUDA driver: loads machine code, describes launches, encodes tensor maps.

It is called through `cuda.bindings`, whose launch is as fast as one through ctypes. Only tensor
maps go through ctypes: the driver needs them aligned to 64 bytes, which `cuda.bindings` does not
guarantee.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from functools import cache
from importlib import import_module
from typing import Any

from stack.errors import StackError

MAP_BYTES, _MAP_ALIGNMENT = 128, 64  # of a tensor map
# errors of kernels that ran; the context is unusable after them
_FAULTS = frozenset({700, 702, *range(709, 721)})
_PROMOTE_128B = 2  # how much of a line the L2 cache fetches


@cache
def driver() -> Any:
    """The driver's functions; each returns its status first. Raises StackError if unavailable."""
    try:
        found = import_module("cuda.bindings.driver")
        found.cuInit(0)
    except ImportError as error:
        raise StackError(f"launching needs `pip install cuda-bindings`: {error}") from error
    except RuntimeError as error:
        raise StackError(f"the CUDA driver cannot be loaded: {error}") from error
    return found


@cache
def library() -> ctypes.CDLL:
    """The driver's library, for what `cuda.bindings` lacks. Raises StackError if unavailable."""
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise StackError(f"the CUDA driver cannot be loaded: {error}") from error


@cache
def encode() -> Any:
    """The driver function that encodes a tensor map. Raises StackError if there is no driver."""
    found = library().cuTensorMapEncodeTiled
    word, number, pointer = ctypes.c_uint, ctypes.c_int, ctypes.c_void_p
    found.argtypes = [pointer, number, word, *[pointer] * 5, *[number] * 4]
    return found


class DriverError(StackError):
    """An error of the driver: its status number and text."""

    def __init__(self, status: int, text: str) -> None:
        self.status = status
        super().__init__(text)

    @property
    def is_fault(self) -> bool:
        """True if earlier work left the device's context unusable."""
        return self.status in _FAULTS


def check(status: Any, what: str) -> None:
    """Raise DriverError with the driver's text if a status is not success."""
    if status:
        _, text = driver().cuGetErrorString(status)
        message = (text or b"unknown error").decode()
        raise DriverError(int(status), f"CUDA error {int(status)} ({message}) while {what}")


def _ensure_context(device: int) -> None:
    cuda = driver()
    status, context = cuda.cuCtxGetCurrent()
    check(status, "looking for a context")
    if not int(context):
        status, context = cuda.cuDevicePrimaryCtxRetain(device)
        check(status, f"starting device {device}")
        check(cuda.cuCtxSetCurrent(context)[0], f"choosing device {device}")


class Function:
    """A kernel loaded on the device.

    Raises StackError if the driver refuses the code.
    """

    def __init__(self, cubin: bytes, name: str, shared: int, device: int) -> None:
        cuda = driver()
        _ensure_context(device)
        self.name, self.shared = name, shared
        self.code = cubin
        status, module = cuda.cuModuleLoadData(cubin)
        check(status, f"loading kernel {name}")
        status, self.handle = cuda.cuModuleGetFunction(module, name.encode())
        check(status, f"looking for kernel {name}")
        if shared:  # dynamic shared memory beyond the default limit must be requested
            most = cuda.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            (status,) = cuda.cuFuncSetAttribute(self.handle, most, shared)
            check(status, f"asking for {shared} bytes of shared memory for kernel {name}")


def launch_config(grid: Sequence[int], block: Sequence[int], shared: int) -> Any:
    """A launch configuration: grid, block and shared memory; set `hStream` to choose the stream."""
    config = driver().CUlaunchConfig()
    config.gridDimX, config.gridDimY, config.gridDimZ = grid
    config.blockDimX, config.blockDimY, config.blockDimZ = block
    config.sharedMemBytes = shared
    config.numAttrs = 0
    return config


def map_memory() -> ctypes.Array[ctypes.c_char]:
    """Returns memory for a tensor map, aligned as the driver needs it."""
    raw = ctypes.create_string_buffer(MAP_BYTES + _MAP_ALIGNMENT)
    skipped = -ctypes.addressof(raw) % _MAP_ALIGNMENT
    return (ctypes.c_char * MAP_BYTES).from_buffer(raw, skipped)


class TensorMap:
    """Memory as a row-major matrix for the copy engine: 128 bytes, passed to a kernel.

    Args:
        shape: rows and columns; a row is contiguous.
        block: rows and columns of one copy.
        kind, swizzle: numbers of the driver's enumerations.
        width: bytes per element.
    """

    def __init__(
        self, shape: Sequence[int], block: Sequence[int], kind: int, swizzle: int, width: int
    ) -> None:
        self.raw = map_memory()
        self.address = ctypes.addressof(self.raw)
        self.pointer = 0
        rank = len(shape)
        strides = [math.prod(shape[i + 1 :]) * width for i in range(rank)]
        sizes = (ctypes.c_uint64 * rank)(*reversed(shape))
        steps = (ctypes.c_uint64 * rank)(*reversed(strides[:-1]), 0)
        box = (ctypes.c_uint32 * rank)(*reversed(block))
        ones = (ctypes.c_uint32 * rank)(*[1] * rank)
        self.kept = sizes, steps, box, ones
        self.what = (self.address, kind, rank)
        self.how = (*map(ctypes.addressof, self.kept), 0, swizzle, _PROMOTE_128B, 0)

    def point(self, pointer: int) -> None:
        """Encode the map for the memory at an address."""
        if pointer == self.pointer:
            return
        status = encode()(*self.what, pointer, *self.how)
        if status:
            check(
                driver().CUresult(status),
                f"describing a matrix of {list(self.kept[0])[::-1]} at {pointer:#x}",
            )
        self.pointer = pointer
