"""The CUDA driver through ctypes: loading machine code, tensor maps, how a launch is described."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from functools import cache
from typing import Any

from stack.errors import StackError

_MOST_DYNAMIC_SHARED = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
_REGISTERS, _LOCAL_BYTES = 4, 3
_MAP_BYTES, _MAP_ALIGNMENT = 128, 64
_FAULTS = frozenset({700, 702, *range(709, 721)})  # of kernels that ran: nothing works after them
_PROMOTE_128B = 2  # how much of a line the L2 cache fetches


@cache
def library() -> Any:
    """libcuda. Raises StackError where there is none."""
    try:
        found = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise StackError(f"the CUDA driver cannot be loaded: {error}") from error
    word, number, pointer = ctypes.c_uint, ctypes.c_int, ctypes.c_void_p
    found.cuLaunchKernelEx.argtypes = [pointer] * 4
    found.cuTensorMapEncodeTiled.argtypes = [
        pointer, number, word, *[pointer] * 5, *[number] * 4,
    ]  # fmt: skip
    return found


class DriverError(StackError):
    """What the driver says, and its number for it."""

    def __init__(self, status: int, text: str) -> None:
        self.status = status
        super().__init__(text)

    @property
    def is_fault(self) -> bool:
        """Whether something that ran before took the device's context with it."""
        return self.status in _FAULTS


def check(status: int, what: str) -> None:
    """Raise DriverError with the driver's words."""
    if status:
        text = ctypes.c_char_p()
        library().cuGetErrorString(status, ctypes.byref(text))
        message = (text.value or b"unknown error").decode()
        raise DriverError(status, f"CUDA error {status} ({message}) while {what}")


def _ensure_context(device: int) -> None:
    context = ctypes.c_void_p()
    check(library().cuCtxGetCurrent(ctypes.byref(context)), "looking for a context")
    if not context.value:
        retained = library().cuDevicePrimaryCtxRetain(ctypes.byref(context), device)
        check(retained, f"starting device {device}")
        check(library().cuCtxSetCurrent(context), f"choosing device {device}")


class Function:
    """A kernel that is on the device.

    Raises StackError where the driver refuses the code.
    """

    def __init__(self, cubin: bytes, name: str, shared: int, device: int) -> None:
        driver = library()
        driver.cuInit(0)
        _ensure_context(device)
        self.name, self.shared = name, shared
        self.code = cubin
        module, self.handle = ctypes.c_void_p(), ctypes.c_void_p()
        check(driver.cuModuleLoadData(ctypes.byref(module), cubin), f"loading kernel {name}")
        found = driver.cuModuleGetFunction(ctypes.byref(self.handle), module, name.encode())
        check(found, f"looking for kernel {name}")
        if shared:  # more than every kernel has, with what its code declares, needs to be asked for
            asked = driver.cuFuncSetAttribute(self.handle, _MOST_DYNAMIC_SHARED, shared)
            check(asked, f"asking for {shared} bytes of shared memory for kernel {name}")

    def resources(self) -> dict[str, int]:
        """Registers, and bytes of stack, of a thread."""
        return {"registers": self._attribute(_REGISTERS), "stack": self._attribute(_LOCAL_BYTES)}

    def _attribute(self, number: int) -> int:
        value = ctypes.c_int()
        asked = library().cuFuncGetAttribute(ctypes.byref(value), number, self.handle)
        check(asked, f"asking about kernel {self.name}")
        return value.value


class LaunchConfig(ctypes.Structure):
    """CUlaunchConfig: how many blocks of how many threads, on which stream."""

    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.c_void_p),
        ("attribute_count", ctypes.c_uint),
    )


class TensorMap:
    """Memory as a matrix for the copy engine: the 128 bytes that a kernel is given.

    Args:
        shape: rows and columns; the columns lie next to each other.
        block: rows and columns that one copy takes.
        kind, swizzle: as the driver numbers them.
        width: bytes of an element.
    """

    def __init__(
        self, shape: Sequence[int], block: Sequence[int], kind: int, swizzle: int, width: int
    ) -> None:
        self.raw = ctypes.create_string_buffer(_MAP_BYTES + _MAP_ALIGNMENT)
        start = ctypes.addressof(self.raw)
        self.address = start + -start % _MAP_ALIGNMENT
        self.pointer = 0
        rank = len(shape)
        strides = [math.prod(shape[i + 1 :]) * width for i in range(rank)]
        self.sizes = (ctypes.c_uint64 * rank)(*reversed(shape))
        self.strides = (ctypes.c_uint64 * rank)(*reversed(strides[:-1]), 0)
        self.box = (ctypes.c_uint32 * rank)(*reversed(block))
        self.steps = (ctypes.c_uint32 * rank)(*[1] * rank)
        self.rank, self.kind, self.swizzle = rank, kind, swizzle

    def point(self, pointer: int) -> None:
        """Make it a map of the memory at an address."""
        if pointer == self.pointer:
            return
        status = library().cuTensorMapEncodeTiled(
            self.address, self.kind, self.rank, pointer, self.sizes, self.strides, self.box,
            self.steps, 0, self.swizzle, _PROMOTE_128B, 0,
        )  # fmt: skip
        check(status, f"describing a matrix of {list(self.sizes)[::-1]} at {pointer:#x}")
        self.pointer = pointer
