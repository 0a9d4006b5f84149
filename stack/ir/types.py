"""Types of values: element type, shape and memory space; tuples for several results."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from operator import index
from typing import Any

import numpy as np

from stack.ir.dim import Dim, Expr, Symbol, product, symbols


@dataclass(frozen=True, eq=False)
class DType:
    """An element type. `kind` is b(ool), i(nt), u(nsigned), f(loat), c(omplex) or s(torage).

    Storage types are bytes: they can be moved and reinterpreted, but not computed with.

    `numpy` is the interpreter's representation. bf16 uses float32 arrays whose values are all bf16
    values, so the core needs NumPy alone. There is one object for each type.
    """

    name: str
    bits: int
    kind: str
    numpy: str
    is_float: bool = field(init=False)
    is_integer: bool = field(init=False)
    bytes: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "is_float", self.kind == "f")
        object.__setattr__(self, "is_integer", self.kind in "iu")
        object.__setattr__(self, "bytes", max(1, self.bits // 8))

    def __str__(self) -> str:
        return self.name

    __repr__ = __str__

    def __reduce__(self) -> tuple[Callable[[str], DType], tuple[str]]:
        return dtype_named, (self.name,)


DTYPES: dict[str, DType] = {
    d.name: d
    for d in (
        DType("bool", 8, "b", "bool"),
        DType("i8", 8, "i", "int8"),
        DType("i16", 16, "i", "int16"),
        DType("i32", 32, "i", "int32"),
        DType("i64", 64, "i", "int64"),
        DType("u8", 8, "u", "uint8"),
        DType("u16", 16, "u", "uint16"),
        DType("u32", 32, "u", "uint32"),
        DType("u64", 64, "u", "uint64"),
        DType("f16", 16, "f", "float16"),
        DType("bf16", 16, "f", "float32"),
        DType("f32", 32, "f", "float32"),
        DType("f64", 64, "f", "float64"),
        DType("c64", 64, "c", "complex64"),
        DType("c128", 128, "c", "complex128"),
    )
}


# floats of 8 bits by the suffixes of ml_dtypes; integers of fewer, each in a byte
STORAGE_TYPES: dict[str, DType] = {
    name: DType(name, 8, "s", "int8" if name[0] == "i" else "uint8")
    for name in (
        *("f8e4m3fn", "f8e5m2", "f8e4m3fnuz", "f8e5m2fnuz", "f8e4m3", "f8e3m4", "f8e4m3b11fnuz"),
        *("f8e8m0fnu", "i2", "u2", "i4", "u4"),
    )
}


def dtype_named(name: str) -> DType:
    """The element type of that name; raises KeyError."""
    return STORAGE_TYPES.get(name) or DTYPES[name]


BOOL = DTYPES["bool"]
I32 = DTYPES["i32"]
I64 = DTYPES["i64"]
BF16 = DTYPES["bf16"]
F16 = DTYPES["f16"]
F32 = DTYPES["f32"]
F64 = DTYPES["f64"]

_LONG = {"f8": "float8_", "i": "int", "u": "uint"}
# storage types by the names that ml_dtypes, JAX and torch have for them
LONG_NAMES = {
    long + name.removeprefix(short): d
    for name, d in STORAGE_TYPES.items()
    for short, long in _LONG.items()
    if name.startswith(short)
}
_FROM_NUMPY = {d.numpy: d for d in DTYPES.values() if d.name != "bf16"}


def dtype_of(array: np.ndarray[Any, Any] | np.generic) -> DType:
    """The element type of a NumPy array, including types of ml_dtypes such as `bfloat16`."""
    name = array.dtype.name
    if name == "bfloat16":
        return BF16
    if name in LONG_NAMES:
        return LONG_NAMES[name]
    if name not in _FROM_NUMPY:
        raise TypeError(f"no element type for NumPy's {name}; known: {', '.join(DTYPES)}")
    return _FROM_NUMPY[name]


# The space of a value. "value": a whole tensor, "tile": a block of a tensor in one program,
# the rest: memory that a kernel reads and writes.
MEMORY = ("global", "shared", "local")
SPACES = ("value", "tile", *MEMORY)


@dataclass(frozen=True)
class TensorType:
    """`f32[8, 64]` a tensor, `f32<8x64>` a tile, `f32[8, 64] in global` memory of a kernel.

    Attributes:
        sharding: the distribution of its elements over a mesh, None if unspecified: a `Sharding` of
            the wing `mesh`. Types that differ only in it are equal, but nodes are not.
    """

    dtype: DType
    shape: tuple[Dim, ...]
    space: str = "value"
    sharding: Any = field(default=None, compare=False)
    rank: int = field(init=False, repr=False, compare=False)
    _hash: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        shape = self.shape
        object.__setattr__(self, "rank", len(shape))
        for size in shape:
            if type(size) is int:
                if size < 0:
                    raise ValueError(f"a size is not negative: {list(shape)}")
            elif self.space == "tile" or not isinstance(size, Expr):
                # converts NumPy integers to int; raises for other types
                object.__setattr__(self, "shape", tuple(map(self._plain, shape)))
        object.__setattr__(self, "_hash", hash((self.dtype, self.shape, self.space)))

    def _plain(self, size: Any) -> Dim:
        if isinstance(size, Expr) and self.space != "tile":
            return size
        return index(size)

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _text(self) -> str:
        if self.space == "tile":
            return f"{self.dtype}<{'x'.join(map(str, self.shape))}>"
        if self.sharding is not None:
            pairs = zip(self.shape, self.sharding.dims)
            shown = ", ".join(f"{size}{dim}" for size, dim in pairs)
            return f"{self.dtype}[{shown}]{self.sharding.tail}"
        text = f"{self.dtype}[{', '.join(map(str, self.shape))}]"
        return text if self.space == "value" else f"{text} in {self.space}"

    def __str__(self) -> str:
        return self._text

    __repr__ = __str__

    @property
    def size(self) -> Dim:
        """Number of elements."""
        return product(self.shape)

    @property
    def bytes(self) -> Dim:
        """Number of bytes of a dense array of this type."""
        return self.size * self.dtype.bytes

    def with_dtype(self, dtype: DType) -> TensorType:
        return TensorType(dtype, self.shape, self.space)

    def with_shape(self, shape: tuple[Dim, ...]) -> TensorType:
        return TensorType(self.dtype, shape, self.space)

    def with_sharding(self, sharding: Any) -> TensorType:
        """The same type with another sharding."""
        return replace(self, sharding=sharding)


@dataclass(frozen=True)
class TupleType:
    """The type of a node with several results; `item` nodes pick one."""

    items: tuple[TensorType, ...]

    @cached_property
    def sharding(self) -> tuple[Any, ...] | None:
        """The shardings of the items; None if none has one."""
        found = tuple(item.sharding for item in self.items)
        return found if any(s is not None for s in found) else None

    def __str__(self) -> str:
        return f"({', '.join(map(str, self.items))})"

    __repr__ = __str__


Type = TensorType | TupleType


def tensor(dtype: DType | str, *shape: Dim) -> TensorType:
    """`tensor("f32", 8, 64)` is `f32[8, 64]`."""
    return TensorType(dtype_named(dtype) if isinstance(dtype, str) else dtype, shape)


def unsharded(type_: Type) -> Type:
    """Returns a type without the distribution over a mesh; for a tuple type, without that of each
    item.
    """
    if type_.sharding is None:
        return type_
    if isinstance(type_, TupleType):
        return TupleType(tuple(item.with_sharding(None) for item in type_.items))
    return type_.with_sharding(None)


def type_symbols(type_: Type) -> set[Symbol]:
    """Every size symbol in a type."""
    items = type_.items if isinstance(type_, TupleType) else (type_,)
    sizes = [dim for item in items for dim in item.shape if not isinstance(dim, int)]
    return {s for dim in sizes for s in symbols(dim)}


# of IEEE 754 formats: bits of the significand, and of the exponent
_EXACT_BITS = {"f16": 11, "bf16": 8, "f32": 24, "f64": 53}
_EXPONENT_BITS = {"f16": 5, "bf16": 8, "f32": 8, "f64": 11}


def holds_all(wide: DType, narrow: DType) -> bool:
    """True if `wide` represents every value of `narrow` exactly."""
    if wide == narrow or narrow.kind == "b":
        return True
    if "s" in (wide.kind, narrow.kind):
        return False
    if wide.kind in "iu" and narrow.kind in "iu":
        if narrow.kind == "i" and wide.kind == "u":
            return False
        return wide.bits > narrow.bits or (wide.kind == narrow.kind and wide.bits >= narrow.bits)
    if wide.kind == "f" and narrow.kind in "iu":
        return _EXACT_BITS[wide.name] >= narrow.bits and wide.name != "f16"
    if wide.kind == "f" and narrow.kind == "f":
        return (
            _EXACT_BITS[wide.name] >= _EXACT_BITS[narrow.name]
            and _EXPONENT_BITS[wide.name] >= _EXPONENT_BITS[narrow.name]
        )
    return False
