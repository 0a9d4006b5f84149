"""Call frames of XLA's foreign function interface, laid out by hand."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np

Word = ctypes.c_int64
Function = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)
STREAM = 0x5150


def words(*values: int) -> Any:
    return (Word * max(1, len(values)))(*values)


class Api:
    """The functions that handlers call: `XLA_FFI_Error_Create`, `XLA_FFI_Stream_Get`."""

    def __init__(self) -> None:
        self.errors: list[str] = []
        self.kept = Function(self._error), Function(self._stream)
        create, get = (ctypes.cast(f, ctypes.c_void_p).value or 0 for f in self.kept)
        self.table = words(*[0] * 6, create, 0, 0, 0, get)

    def _error(self, at: int) -> int:
        size, _, message, code = (Word * 4).from_address(at)
        assert (size, code & 0xFFFFFFFF) == (28, 13)
        self.errors.append(ctypes.string_at(message).decode())
        return 1234

    def _stream(self, at: int) -> int:
        given = (Word * 4).from_address(at)
        assert (given[0], given[2]) == (32, 99)
        given[3] = STREAM
        return 0


class Frame:
    """A call with arrays of host memory."""

    def __init__(
        self, api: Api, plan: int, operands: Sequence[np.ndarray], results: Sequence[np.ndarray]
    ) -> None:
        buffers = [[words(0, 0, 0, a.ctypes.data) for a in part] for part in (operands, results)]
        tables = [words(*map(ctypes.addressof, part)) for part in buffers]
        value = words(plan)
        scalar = words(0, ctypes.addressof(value))
        attributes = words(ctypes.addressof(scalar))
        first, second, third = map(ctypes.addressof, (*tables, attributes))
        self.kept = api, buffers, tables, value, scalar, attributes
        self.words = words(
            *(176, 0, ctypes.addressof(api.table), 99, 3),
            *(40, 0, len(operands), 0, first),
            *(40, 0, len(results), 0, second),
            *(48, 0, 1, 0, 0, third),
            0,
        )
        self.address = ctypes.addressof(self.words)


class Query:
    """XLA's query for the version and the traits of a handler."""

    def __init__(self) -> None:
        self.metadata = words(*[0] * 6)
        self.extension = words(32, 1, 0, ctypes.addressof(self.metadata))
        self.words = words(176, ctypes.addressof(self.extension), *[0] * 20)
        self.address = ctypes.addressof(self.words)

    @property
    def answer(self) -> tuple[int, int, int]:
        """The major and the minor version, and the traits."""
        found = (ctypes.c_int32 * 12).from_buffer(self.metadata)
        return found[6], found[7], found[8]
