"""Constant arrays in the IR: immutable, interned by content, exact for every bit pattern."""

from __future__ import annotations

import hashlib
import math
import weakref
from functools import cached_property
from typing import Any

import numpy as np

from stack.ir.types import BF16, LONG_NAMES, DType

Array = np.ndarray[Any, Any]

INLINE_ELEMENTS = 16  # larger constants print as a digest and are saved in a side file

_POOL: weakref.WeakValueDictionary[tuple[str, tuple[int, ...], bytes], Data] = (
    weakref.WeakValueDictionary()
)
_BY_DIGEST: weakref.WeakValueDictionary[str, Data] = weakref.WeakValueDictionary()


class Data:
    """A constant array. Equal contents are the same object, nan and -0.0 included."""

    __slots__ = ("__dict__", "__weakref__", "dtype", "raw", "shape")

    dtype: DType
    shape: tuple[int, ...]
    raw: bytes

    def __new__(cls, array: Array, dtype: DType) -> Data:
        if dtype.kind == "s" and array.dtype.name in LONG_NAMES:
            array = np.ascontiguousarray(array).view(dtype.numpy).reshape(np.shape(array))
        held = np.ascontiguousarray(array, dtype=dtype.numpy).reshape(np.shape(array))
        if dtype is BF16:
            held = round_bf16(held)
        raw = held.tobytes()
        # short contents key themselves; long ones are keyed by their digest
        content = raw if len(raw) <= 64 else hashlib.sha256(raw).digest()
        key = (dtype.name, held.shape, content)
        found = _POOL.get(key)
        if found is not None:
            return found
        self = object.__new__(cls)
        self.dtype = dtype
        self.shape = held.shape
        self.raw = raw
        self = _POOL.setdefault(key, self)
        if held.size > INLINE_ELEMENTS:
            _BY_DIGEST[self.digest] = self
        return self

    @cached_property
    def digest(self) -> str:
        """First 32 hexadecimal digits of SHA-256 over type, shape and bytes."""
        head = f"{self.dtype}{list(self.shape)}:".encode()
        return hashlib.sha256(head + self.raw).hexdigest()[:32]

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def array(self) -> Array:
        """The elements as a read-only NumPy array."""
        return np.frombuffer(self.raw, dtype=self.dtype.numpy).reshape(self.shape)

    def __str__(self) -> str:
        if self.size > INLINE_ELEMENTS:
            return f"data<{self.dtype}[{', '.join(map(str, self.shape))}], {self.digest}>"
        return f"data<{self.dtype}[{', '.join(map(str, self.shape))}], {_values(self)}>"

    __repr__ = __str__


def scalar_text(value: Any, dtype: DType) -> str:
    """The shortest text that parses back to the same bits of `dtype`."""
    if dtype.kind == "b":
        return "true" if value else "false"
    if dtype.kind == "c":
        pair = np.asarray(value, dtype=dtype.numpy).reshape(1).view(_part(dtype))
        return f"{_float_text(pair[0])}~{_float_text(pair[1])}"
    if dtype.kind != "f":
        return str(int(value))
    return _float_text(np.asarray(value, dtype=dtype.numpy).reshape(1)[0])


def _part(dtype: DType) -> np.dtype[Any]:
    """The NumPy float type of the real and the imaginary part of a complex type."""
    return np.dtype(f"float{dtype.bits // 2}")


def _float_text(value: np.floating[Any]) -> str:
    if np.isnan(value):
        bits = _bits(value)
        return "nan" if bits == _bits(type(value)(np.nan)) else f"nan.{bits:x}"
    if np.isinf(value):
        return "inf" if value > 0 else "-inf"
    if value == 0 or 1e-5 <= abs(float(value)) < 1e9:
        return np.format_float_positional(value, unique=True, trim="0")
    return np.format_float_scientific(value, unique=True, trim="-")


def _bits(value: np.floating[Any]) -> int:
    return int.from_bytes(value.tobytes(), "little")


def parse_scalar(text: str, dtype: DType) -> Any:
    """Inverse of `scalar_text`. Raises ValueError for text that is no number of `dtype`."""
    if dtype.kind == "b":
        if text not in ("true", "false"):
            raise ValueError(f"expected true or false, found {text!r}")
        return np.asarray(text == "true")
    if dtype.kind == "c":
        real, _, imag = text.partition("~")
        part = _part(dtype)
        pair = np.array([_parse_float(real, part), _parse_float(imag or "0", part)], dtype=part)
        return pair.view(dtype.numpy)[0]
    if dtype.kind in "ius":
        limits = np.iinfo(dtype.numpy)
        number = int(text)
        if not limits.min <= number <= limits.max:
            raise ValueError(f"{number} does not fit {dtype}")
        return np.asarray(number, dtype=dtype.numpy)
    return _parse_float(text, np.dtype(dtype.numpy))


def _parse_float(text: str, dtype: np.dtype[Any]) -> Any:
    if text.startswith("nan."):
        bits = int(text[4:], 16)
        if bits >> (8 * dtype.itemsize) == 0:
            value = np.frombuffer(bits.to_bytes(dtype.itemsize, "little"), dtype=dtype)[0]
            if np.isnan(value):
                return value
        raise ValueError(f"{text!r} are not the bits of a nan")
    with np.errstate(over="ignore"):
        value = np.asarray(text, dtype=dtype)[()]
    if np.isinf(value) and not text.endswith("inf"):
        raise ValueError(f"{text} is too large")
    return value


def _values(data: Data) -> str:
    flat = data.array.reshape(-1)
    return "[" + ", ".join(scalar_text(v, data.dtype) for v in flat) + "]"


def lookup(digest: str) -> Data | None:
    """A live constant of this process, by digest."""
    return _BY_DIGEST.get(digest)


def round_bf16(array: Array) -> Array:
    """Rounds float32 to the nearest bf16 value, ties to even; nan stays nan. Returns float32."""
    wide = np.ascontiguousarray(array, dtype=np.float32)
    bits = wide.view(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)
    is_nan = np.isnan(wide)
    if is_nan.any():
        # keeps the upper half of the payload; a nan with an empty upper half becomes quiet
        cut = bits & np.uint32(0xFFFF0000)
        cut |= np.where(cut & 0x007F0000, np.uint32(0), np.uint32(0x00400000))
        rounded = np.where(is_nan, cut, rounded)
    return rounded.view(np.float32).reshape(np.shape(array))


# ---- storage: the arrays between steps and at interfaces, where bf16 is uint16 bits


def storage_dtype(dtype: DType) -> np.dtype[Any]:
    """The NumPy element type of storage arrays; uint16 for bf16."""
    return np.dtype("uint16" if dtype is BF16 else dtype.numpy)


def decode(array: np.ndarray, dtype: DType) -> np.ndarray:
    """Converts storage to the interpreter's arrays: bf16 becomes float32."""
    if dtype is not BF16:
        return array
    return np.asarray(array.astype(np.uint32) << 16).view(np.float32)


def encode(array: np.ndarray, dtype: DType) -> np.ndarray:
    """Converts the interpreter's arrays to storage: float32 is rounded to bf16."""
    if dtype is not BF16:
        return array
    wide = round_bf16(np.asarray(array, dtype=np.float32))
    return np.asarray(wide.view(np.uint32) >> 16, dtype=np.uint16)
