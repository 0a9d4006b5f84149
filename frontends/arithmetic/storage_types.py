"""Casts from and to storage types: 8-bit floats, 2-bit and 4-bit integers.

The IR moves such elements as bytes. Casts are built from integer ops, so that they can be fused
into kernels. Casts to an 8-bit float round to nearest, ties to even. A number that is too large
becomes infinity if the type has it, else nan; with `saturates` it becomes the largest number.

    x = (-1)^s 2^(e - bias) (1 + m / 2^M), or with e = 0: (-1)^s 2^(1 - bias) m / 2^M

The suffixes are those of ml_dtypes: `fn` has no infinities, and nan has all bits except the sign
set; `fnuz` has no -0 either, and uses its code for nan.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from stack.ir.builder import Builder, constant
from stack.ir.node import Node
from stack.ir.types import DTYPES, F32, DType, TensorType

_BYTE, _WORD = DTYPES["u8"], DTYPES["u32"]
_F32_DIGITS, _F32_BIAS = 23, 127
_F32_INF = 0xFF << _F32_DIGITS


@dataclass(frozen=True)
class Format:
    """An 8-bit float format.

    Attributes:
        digits: bits of the fraction.
        bias: bias of the exponent.
        inf: the code of infinity, or of the first nan if there is no infinity.
        nan: a code of nan; the code of -0 if that is the only nan.
    """

    digits: int
    bias: int
    inf: int
    nan: int

    @property
    def has_inf(self) -> bool:
        """True if the type has infinities."""
        return self.inf != self.nan and self.nan != _SIGN


_SIGN = 0x80
FORMATS: dict[str, Format] = {
    "f8e4m3fn": Format(3, 7, 0x7F, 0x7F),
    "f8e5m2": Format(2, 15, 0x7C, 0x7E),
    "f8e4m3fnuz": Format(3, 8, 0x80, _SIGN),
    "f8e5m2fnuz": Format(2, 16, 0x80, _SIGN),
    "f8e4m3": Format(3, 7, 0x78, 0x7C),
    "f8e3m4": Format(4, 3, 0x70, 0x78),
    "f8e4m3b11fnuz": Format(3, 11, 0x80, _SIGN),
}
INTEGER_BITS = {"i2": 2, "u2": 2, "i4": 4, "u4": 4}


def is_storage(dtype: DType) -> bool:
    """True if the IR only moves elements of a type and does not compute with them."""
    return dtype.kind == "s"


def has_storage(value: Any) -> bool:
    """True if a value has a storage type such as f8e5m2 or i4: the IR only moves its elements.

    `value` is a node, a tensor type, or nested lists of them; anything else has none.
    """
    if isinstance(value, list | tuple):
        return any(map(has_storage, value))
    if isinstance(value, Node):
        return any([is_storage(t.dtype) for t in value.types])
    return isinstance(value, TensorType) and is_storage(value.dtype)


def widened(b: Builder, x: Node) -> Node:
    """Converts a storage type to f32, i8 or u8 without loss; returns `x` of other types."""
    name = x.dtype.name
    if not is_storage(x.dtype):
        return x
    if name in INTEGER_BITS:
        dtype = DTYPES["i8" if name[0] == "i" else "u8"]
        return _in_range(b, _bits(b, x, dtype), INTEGER_BITS[name])
    code = b.cast(_bits(b, x, _BYTE), type=x.tensor.with_dtype(_WORD))
    if name == "f8e8m0fnu":  # 2^(code - 127): an exponent of f32, except first and last code
        power = b.select(b.eq(code, 0), 1 << (_F32_DIGITS - 1), b.shl(code, _F32_DIGITS))
        return b.select(b.eq(code, 0xFF), float("nan"), _bits(b, power, F32))
    form = FORMATS[name]
    size = b.and_(code, _SIGN - 1)
    shifted = _bits(b, b.shl(size, _F32_DIGITS - form.digits), F32)
    value = b.mul(shifted, 2.0 ** (_F32_BIAS - form.bias))
    if form.has_inf:
        value = b.select(b.ge(size, form.inf), float("inf"), value)
    is_nan = b.eq(code, _SIGN) if form.nan == _SIGN else b.gt(size, form.inf)
    if not form.has_inf and form.nan != _SIGN:
        is_nan = b.eq(size, form.nan)
    sign = b.shl(b.and_(code, _SIGN), 31 - 7)
    signed = _bits(b, b.or_(_bits(b, value, _WORD), sign), F32)
    return b.select(is_nan, float("nan"), signed)


def narrowed(b: Builder, x: Node, dtype: DType, saturates: bool = False) -> Node | None:
    """Converts numbers to a storage type; None if there is no rule.

    Integers wrap. A float becomes the nearest representable integer towards zero; nan becomes 0.

    Args:
        saturates: if true, infinities and numbers that are too large become the largest float.
    """
    if dtype.name in INTEGER_BITS:
        return _bits(b, _narrow_integer(b, x, dtype), dtype)
    form = FORMATS.get(dtype.name)
    if form is None:
        return None
    x = b.cast(x, type=x.tensor.with_dtype(F32)) if x.dtype != F32 else x
    whole = _bits(b, x, _WORD)
    size = b.and_(whole, 0x7FFFFFFF)
    # round half to even: add half of the last kept digit, less one if it is even
    dropped = _F32_DIGITS - form.digits
    odd = b.and_(b.shr(size, dropped), 1)
    rounded = b.shr(b.add(b.add(size, (1 << (dropped - 1)) - 1), odd), dropped)
    normal = b.sub(rounded, (_F32_BIAS - form.bias) << form.digits)
    # subnormal results: adding a large number rounds to their common last digit
    last = 1 - form.bias - form.digits
    magic = 2.0 ** (last + _F32_DIGITS)
    start = constant(magic, F32)
    raised = b.add(_bits(b, size, F32), start)
    small = b.sub(_bits(b, raised, _WORD), (last + _F32_DIGITS + _F32_BIAS) << _F32_DIGITS)
    least = (1 - form.bias + _F32_BIAS) << _F32_DIGITS
    code = b.select(b.lt(size, least), small, normal)
    code = b.select(b.ge(code, form.inf), form.inf - saturates, code)
    is_nan = b.gt(size, _F32_INF)
    if form.nan != _SIGN:
        sign = b.and_(b.shr(whole, 31 - 7), _SIGN)
        code = b.or_(b.select(is_nan, form.nan, code), sign)
    else:
        sign = b.select(b.eq(code, 0), 0, b.and_(b.shr(whole, 31 - 7), _SIGN))
        is_nan = b.or_(is_nan, b.ge(code, form.inf))
        code = b.select(is_nan, form.nan, b.or_(code, sign))
    return _bits(b, b.cast(code, type=code.tensor.with_dtype(_BYTE)), dtype)


def _narrow_integer(b: Builder, x: Node, dtype: DType) -> Node:
    """Returns a byte with the value of a narrower integer."""
    bits, is_signed = INTEGER_BITS[dtype.name], dtype.name[0] == "i"
    wide = DTYPES["i8" if is_signed else "u8"]
    if x.dtype.is_float:
        x = b.cast(x, type=x.tensor.with_dtype(F32)) if x.dtype.bits == 16 else x
        most = float((1 << (bits - is_signed)) - 1)
        least = -most - 1 if is_signed else 0.0
        x = b.min(b.max(b.select(b.isnan(x), 0.0, x), least), most)
    held = b.cast(x, type=x.tensor.with_dtype(wide)) if x.dtype != wide else x
    return _in_range(b, held, bits)


def _bits(b: Builder, x: Node, dtype: DType) -> Node:
    return b.bitcast(x, type=x.tensor.with_dtype(dtype))


def _in_range(b: Builder, x: Node, bits: int) -> Node:
    """Sign-extends the lowest bits of a byte (zero-extends if unsigned)."""
    unused = 8 - bits
    return b.shr(b.shl(x, unused), unused)
