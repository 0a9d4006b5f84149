"""The call frame of XLA's foreign function interface, read through ctypes.

Struct offsets are those of `xla/ffi/api/c_api.h`, whose major version 0 keeps them. A frame is 22
words; a buffer has its address at word 3.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

VERSION = 0, 1  # the oldest version of the interface with all that is used here
CAPTURABLE = 1  # a trait: XLA may capture the call in a CUDA graph
_FRAME_WORDS = 22
_EXTENSION, _API, _CONTEXT, _OPERANDS, _RESULTS, _ATTRIBUTES = 1, 2, 3, 7, 12, 20
_CREATE_ERROR, _GET_STREAM = 6, 10  # functions of the interface, by word
_METADATA = 1  # the extension that asks for the version
_INTERNAL = 13  # the code of an error

Word = ctypes.c_int64
Handler = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)
_words = Word * _FRAME_WORDS


class _ErrorArguments(ctypes.Structure):
    _fields_ = (
        ("size", ctypes.c_size_t),
        ("extension", ctypes.c_void_p),
        ("message", ctypes.c_char_p),
        ("code", ctypes.c_int),
    )


class _StreamArguments(ctypes.Structure):
    _fields_ = (
        ("size", ctypes.c_size_t),
        ("extension", ctypes.c_void_p),
        ("context", ctypes.c_void_p),
        ("stream", ctypes.c_void_p),
    )


class Frame:
    """One call: the attribute, the stream, and the addresses of operands and results."""

    def __init__(self, address: int) -> None:
        self.words = _words.from_address(address)

    def answer(self) -> bool:
        """Answers XLA's query for metadata; returns False if the frame is a call."""
        extension = self.words[_EXTENSION]
        if not extension or ctypes.c_int.from_address(extension + 8).value != _METADATA:
            return False
        asked = Word.from_address(extension + 24).value
        version = (ctypes.c_int * 2).from_address(asked + 24)
        version[0], version[1] = VERSION
        ctypes.c_uint32.from_address(asked + 32).value = CAPTURABLE
        return True

    @property
    def plan(self) -> int:
        """The only attribute, a number."""
        scalar = Word.from_address(self.words[_ATTRIBUTES]).value
        return Word.from_address(Word.from_address(scalar + 8).value).value

    @property
    def addresses(self) -> list[int]:
        """The addresses of operands and results."""
        return [*self._buffers(_OPERANDS), *self._buffers(_RESULTS)]

    def _buffers(self, count_at: int) -> list[int]:
        count, first = self.words[count_at], self.words[count_at + 2]
        found = (Word * count).from_address(first) if count else ()
        return [Word.from_address(buffer + 24).value for buffer in found]

    def stream(self) -> int:
        """The handle of the stream to launch on. Raises RuntimeError if there is none."""
        size = ctypes.sizeof(_StreamArguments)
        given = _StreamArguments(size, None, self.words[_CONTEXT], None)
        error = self._function(_GET_STREAM)(ctypes.addressof(given))
        if error:
            raise RuntimeError("XLA gives no stream for this call")
        return given.stream or 0

    def error(self, message: str) -> int:
        """Returns an error for XLA to raise."""
        size = _ErrorArguments.code.offset + _ErrorArguments.code.size
        given = _ErrorArguments(size, None, message.encode(), _INTERNAL)
        return self._function(_CREATE_ERROR)(ctypes.addressof(given)) or 0

    def _function(self, number: int) -> Callable[[int], Any]:
        return Handler(Word.from_address(self.words[_API] + 8 * number).value)
