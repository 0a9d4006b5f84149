"""The CPU as a device of programs: NumPy storage arrays, and kernels called by address."""

from __future__ import annotations

import ctypes
import math
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from stack.errors import StackError
from stack.ir.data import encode, storage_dtype
from stack.ir.node import Node
from stack.run.cache import Cache
from stack.target.record import LINE
from stack.wings import part

from ..runtime.control import has_only_kernels
from ..runtime.device import CallOpaque, DeviceKernel, LibraryCall, Load, Make, Work
from .control_flow import ControlFlow
from .library import library_of

# ---- the data address of an array, which every call needs for every array

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


@dataclass(eq=False)
class Host:
    """This machine's memory. `cache` is for compiled control flow."""

    cache: Cache | None = None
    out_of_memory = MemoryError

    def memory(self, size: int, what: str) -> np.ndarray:
        return self.allocator((size,), np.dtype(np.uint8), what)()

    def allocator(
        self, shape: tuple[int, ...], dtype: np.dtype[Any], what: str
    ) -> Callable[[], np.ndarray]:
        """Returns an allocator of arrays aligned to cache lines: no vector straddles two lines."""
        size = math.prod(shape) * dtype.itemsize

        def allocate() -> np.ndarray:
            try:
                memory = np.empty(size + LINE, np.uint8)
            except MemoryError as error:
                raise StackError(self.shortage(error, size, what)) from error
            start = -memory.ctypes.data % LINE
            return memory[start : start + size].view(dtype).reshape(shape)

        return allocate

    def shortage(self, error: BaseException, asked: int, what: str) -> str:
        return f"out of memory: {what} needs {asked} bytes ({error})"

    dtype = staticmethod(storage_dtype)
    address = staticmethod(address)
    copy = staticmethod(np.ndarray.copy)

    def constant(self, node: Node) -> np.ndarray:
        return np.ascontiguousarray(encode(node.attrs["value"].array, node.dtype))

    def library(self, node: Node) -> LibraryCall:
        if node.op != "fusion":
            raise StackError(f"the mlir backend cannot run op {node.op!r}")
        return library_of(node)

    def opaque(self, node: Node, call: CallOpaque) -> Make:
        target, how = str(node.attrs["target"]), node.attrs["call"]
        dtypes = [storage_dtype(t.dtype) for t in node.types]

        def run(arrays: Sequence[np.ndarray], _: int) -> list[np.ndarray]:
            return _own(call(target, how, arrays), dtypes, arrays)

        return run

    def hosted(self, node: Node) -> LibraryCall:
        kernel, attributes = part("ops", "kernel-call")(node, "cpu")
        dtypes = [storage_dtype(t.dtype) for t in node.types]

        def run(arrays: Sequence[np.ndarray], _: int) -> list[np.ndarray]:
            out = kernel(*arrays, **attributes)
            return _own(out if isinstance(out, tuple) else (out,), dtypes, arrays)

        return LibraryCall(kernel.kind, make=run)

    def control(self, node: Node, read: Sequence[int], load: Load) -> DeviceKernel | None:
        """Returns a native function if every step is one of our kernels; else None."""
        if not has_only_kernels(node):
            return None
        return ControlFlow(node, read, load, self.constant, self.cache)

    def within(self, run: Work, arrays: Iterable[np.ndarray]) -> list[np.ndarray]:
        # a NumPy scalar has no memory that persists
        return run((np.asarray(a, order="C") for a in arrays), 0)

    def mark(self) -> float:
        return time.perf_counter()

    def seconds(self, marks: Sequence[float]) -> list[float]:
        return [b - a for a, b in pairwise(marks)]


def _own(
    results: Sequence[Any], dtypes: Sequence[np.dtype[Any]], others: Sequence[np.ndarray]
) -> list[np.ndarray]:
    """Dense results that share no memory with each other or with other arrays."""
    made: list[np.ndarray] = []
    for result, dtype in zip(results, dtypes, strict=True):
        held = np.ascontiguousarray(result, dtype=dtype).reshape(np.shape(result))
        shared = any(np.may_share_memory(held, a) for a in (*others, *made))
        made.append(held.copy() if shared else held)
    return made
