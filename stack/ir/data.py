"""Constant arrays inside the IR: immutable, hashed by content, exact for every bit pattern."""

from __future__ import annotations

import hashlib
import weakref
from functools import cached_property

import numpy as np

from stack.ir.types import BF16, DType

INLINE_ELEMENTS = 16  # larger constants print as a name and a digest, and live in a side file

_POOL: weakref.WeakValueDictionary[tuple[str, tuple[int, ...], bytes], Data] = (
    weakref.WeakValueDictionary()
)
_BY_DIGEST: weakref.WeakValueDictionary[str, Data] = weakref.WeakValueDictionary()


class Data:
    """An array constant. Equal contents are the same object, nan and -0.0 included."""

    __slots__ = ("__dict__", "__weakref__", "dtype", "raw", "shape")

    dtype: DType
    shape: tuple[int, ...]
    raw: bytes

    def __new__(cls, array: np.ndarray, dtype: DType) -> Data:
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
        _POOL[key] = self
        if self.size > INLINE_ELEMENTS:
            _BY_DIGEST[self.digest] = self
        return self

    @cached_property
    def digest(self) -> str:
        """First 32 hexadecimal digits of SHA-256 over type, shape and bytes."""
        head = f"{self.dtype}{list(self.shape)}:".encode()
        return hashlib.sha256(head + self.raw).hexdigest()[:32]

    @property
    def size(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64))

    @property
    def array(self) -> np.ndarray:
        """The values, read-only."""
        return np.frombuffer(self.raw, dtype=self.dtype.numpy).reshape(self.shape)

    def __str__(self) -> str:
        if self.size > INLINE_ELEMENTS:
            return f"data<{self.dtype}[{', '.join(map(str, self.shape))}], {self.digest}>"
        return f"data<{self.dtype}[{', '.join(map(str, self.shape))}], {_values(self)}>"

    __repr__ = __str__


def scalar_text(value: object, dtype: DType) -> str:
    """The shortest text that reads back to the same bits of `dtype`."""
    if dtype.kind == "b":
        return "true" if value else "false"
    if dtype.kind == "c":
        number = complex(value)  # pyright: ignore[reportArgumentType]
        return f"{number.real!r}~{number.imag!r}"
    if dtype.kind != "f":
        return str(int(value))  # pyright: ignore[reportArgumentType, reportCallIssue]
    held = np.asarray(value, dtype=dtype.numpy)
    if np.isnan(held):
        bits = int.from_bytes(held.tobytes(), "little")
        standard = int.from_bytes(np.asarray(np.nan, dtype=dtype.numpy).tobytes(), "little")
        return "nan" if bits == standard else f"nan.{bits:x}"
    if dtype.bits == 64:
        return repr(float(held))
    return np.format_float_scientific(held, unique=True, trim="-") if _is_wide(held) else (
        np.format_float_positional(held, unique=True, trim="0") if np.isfinite(held)
        else repr(float(held))
    )


def _is_wide(held: np.ndarray) -> bool:
    size = abs(float(held))
    return bool(np.isfinite(held)) and size != 0.0 and not 1e-5 <= size < 1e9


def parse_scalar(text: str, dtype: DType) -> np.ndarray:
    """Inverse of `scalar_text`; raises ValueError for what is not a number of `dtype`."""
    if dtype.kind == "b":
        if text not in ("true", "false"):
            raise ValueError(f"expected true or false, found {text!r}")
        return np.asarray(text == "true")
    if dtype.kind == "c":
        real, _, imag = text.partition("~")
        return np.asarray(complex(float(real), float(imag or "0")), dtype=dtype.numpy)
    if dtype.kind in "iu":
        limits = np.iinfo(dtype.numpy)
        number = int(text)
        if not limits.min <= number <= limits.max:
            raise ValueError(f"{number} does not fit {dtype}")
        return np.asarray(number, dtype=dtype.numpy)
    if text.startswith("nan."):
        width = np.dtype(dtype.numpy).itemsize
        return np.frombuffer(int(text[4:], 16).to_bytes(width, "little"), dtype=dtype.numpy)[0]
    with np.errstate(over="ignore"):
        return np.asarray(text, dtype=dtype.numpy)


def _values(data: Data) -> str:
    flat = data.array.reshape(-1)
    return "[" + ", ".join(scalar_text(v, data.dtype) for v in flat) + "]"


def lookup(digest: str) -> Data | None:
    """A constant that is alive in this process, by digest."""
    return _BY_DIGEST.get(digest)


def round_bf16(array: np.ndarray) -> np.ndarray:
    """Round float32 to the nearest bf16 value, ties to even; nan stays nan. Stays float32."""
    bits = np.ascontiguousarray(array, dtype=np.float32).view(np.uint32)
    with np.errstate(over="ignore"):
        rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)
    out = rounded.view(np.float32).reshape(np.shape(array))
    return np.where(np.isnan(array), np.asarray(array, dtype=np.float32), out)
