"""Parses types, sizes, attributes and constants."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from functools import cached_property
from typing import Any

import numpy as np

from stack.errors import WingMissing
from stack.ir.data import Data, lookup, parse_scalar
from stack.ir.dim import Dim, Expr, add, floordiv, maximum, minimum, mod, mul
from stack.ir.lexer import MAX_NESTING, Cursor, Token
from stack.ir.types import (
    DTYPES,
    SPACES,
    STORAGE_TYPES,
    DType,
    TensorType,
    TupleType,
    Type,
    dtype_named,
)
from stack.wings import part

MAX_RANK = 64  # NumPy's
MAX_BITS = 128  # of a number in a size expression


class ValueParser(Cursor):
    """Parses types and attributes."""

    def __init__(self, text: str, data: Mapping[str, np.ndarray[Any, Any]]) -> None:
        super().__init__(text)
        self.data = data
        self.symbols: dict[str, Dim] = {}
        self.quotients = 0  # in the current size expression

    @cached_property
    def shardings(self) -> Any:
        """The parser of meshes and shardings. Fails without the wing `mesh`, and says so."""
        try:
            return part("mesh", "sharding-parser")(self)
        except WingMissing as error:
            self.fail(f"expected no sharding: {error}")

    # ---- attributes

    def attributes(self) -> dict[str, Any]:
        """`{axis=1, kind="sum"}`."""
        self.expect("{")
        attrs: dict[str, Any] = {}
        while self.more("}", attrs):
            name = self.expect_kind("word", "an attribute name")
            if name.text in attrs:
                self.fail(f"attribute {name.text!r} is given twice", name.position)
            self.expect("=")
            attrs[name.text] = self.attribute()
        return attrs

    def attribute(self) -> Any:
        """One attribute value."""
        token = self.next
        if self.accept("["):
            self.deeper("lists are")
            items: list[Any] = []
            while self.more("]", items):
                items.append(self.attribute())
            self.depth -= 1
            return tuple(items)
        if token.kind == "string":
            return self.string()
        for word, value in (("true", True), ("false", False), ("none", None)):
            if self.accept(word):
                return value
        if self.accept("type"):
            return self.dtype()
        if token.kind == "word" and token.text == "data":
            return self.constant()
        if token.kind == "number" and self.peek(2) == [":", "float"]:
            self.at += 3
            return self.scalar(token, DTYPES["f64"]).item()
        return self.dim()

    def string(self) -> str:
        """A quoted string with JSON escapes."""
        token = self.expect_kind("string", 'a quoted text such as "a.py:1"')
        try:
            return json.loads(token.text)
        except ValueError:
            self.fail(f"expected a quoted text, found {token.text}", token.position)

    def scalar(self, token: Token, dtype: DType) -> Any:
        """The number of a token, as NumPy represents that element type."""
        try:
            return parse_scalar(token.text, dtype)
        except (ValueError, OverflowError) as error:
            self.fail(f"expected a number of type {dtype}: {error}", token.position)

    def constant(self) -> Data:
        """`data<f32[2], [1.0, 2.0]>`, or with a digest in place of the values."""
        start = self.take().position
        self.expect("<")
        dtype = self.dtype()
        self.expect("[")
        shape: list[int] = []
        while self.more("]", shape):
            shape.append(self.integer())
        if len(shape) > MAX_RANK or any(size < 0 for size in shape):
            self.fail(f"expected at most {MAX_RANK} sizes, none negative", start)
        self.expect(",")
        if not self.accept("["):
            return self._elided(dtype, tuple(shape), start)
        values: list[Any] = []
        while self.more("]", values):
            values.append(self.scalar(self.take(), dtype))
        self.expect(">")
        if len(values) != math.prod(shape):
            self.fail(f"expected values for {shape}, found {len(values)}", start)
        raw = b"".join(np.asarray(v, dtype=dtype.numpy).tobytes() for v in values)
        try:
            return Data(np.frombuffer(raw, dtype=dtype.numpy).reshape(shape), dtype)
        except (ValueError, OverflowError) as error:
            self.fail(f"expected a shape that an array can have: {error}", start)

    def _elided(self, dtype: DType, shape: tuple[int, ...], start: int) -> Data:
        close = self.text.find(">", self.next.position)
        digest = self.text[self.next.position : close].strip() if close >= 0 else ""
        if not re.fullmatch(r"[0-9a-f]{32}", digest):
            self.fail("expected the 32 hexadecimal digits of a constant")
        while self.next.kind != "end" and self.next.position < close:
            self.take()
        self.expect(">")
        found = lookup(digest)
        if found is None and digest in self.data:
            try:
                found = Data(np.asarray(self.data[digest]), dtype)
            except (ValueError, TypeError, OverflowError) as error:
                self.fail(f"the side file has other data for {digest}: {error}", start)
        if found is None or found.digest != digest or (found.dtype, found.shape) != (dtype, shape):
            self.fail(
                f"expected a constant {dtype}{list(shape)} with digest {digest}: it is neither in"
                " memory nor in the side file (pass data=, or keep the side file by the text)",
                start,
            )
        return found

    # ---- types

    def dtype(self) -> DType:
        """An element type."""
        token = self.expect_kind("word", "an element type such as f32")
        if token.text not in DTYPES and token.text not in STORAGE_TYPES:
            self.fail(
                f"expected an element type ({', '.join(DTYPES)}), found {token.text!r}",
                token.position,
            )
        return dtype_named(token.text)

    def types(self, close: str) -> list[TensorType]:
        """Types up to a closing mark."""
        types: list[TensorType] = []
        while self.more(close, types):
            types.append(self.tensor_type())
        return types

    def type(self) -> Type:
        """A tensor type, or a tuple of them."""
        if self.accept("("):
            return TupleType(tuple(self.types(")")))
        return self.tensor_type()

    def tensor_type(self) -> TensorType:
        """`f32[8, n]`, `f32<8x64>` or `f32[8] in shared`."""
        start = self.next.position
        dtype = self.dtype()
        if self.accept("<"):
            return TensorType(dtype, self._tile_shape(), "tile")
        self.expect("[")
        shape: list[Dim] = []
        places: dict[int, Any] = {}  # how dims are split, by number
        while self.more("]", shape):
            place = self.next.position
            shape.append(self.dim())
            if self.next.text == "{":
                places[len(shape) - 1] = self.shardings.dim_sharding()
            size = shape[-1]
            if isinstance(size, int) and size < 0:
                self.fail(f"expected a size, found {size}", place)
        if len(shape) > MAX_RANK:
            self.fail(f"expected at most {MAX_RANK} sizes, found {len(shape)}", start)
        is_split = bool(places) or (self.next.kind == "name" and self.next.text[0] == "@")
        sharding = self.shardings.sharding(places, len(shape)) if is_split else None
        if sharding is not None or not self.accept("in"):
            return TensorType(dtype, tuple(shape), sharding=sharding)
        spaces = ", ".join(SPACES[2:])
        space = self.expect_kind("word", f"a memory space ({spaces})")
        if space.text not in SPACES[2:]:
            self.fail(f"expected a memory space ({spaces}), found {space.text!r}", space.position)
        return TensorType(dtype, tuple(shape), space.text)

    def _tile_shape(self) -> tuple[int, ...]:
        # "128x64" reads as the number 128 and the word x64
        if self.accept(">"):
            return ()
        text = ""
        start = self.next.position
        while not self.accept(">"):
            if self.next.kind not in ("number", "word") or len(text) > MAX_RANK * 20:
                self.fail(f"expected a tile shape such as 128x64, found {self.next.text!r}")
            text += self.take().text
        if not re.fullmatch(r"[0-9]{1,20}(x[0-9]{1,20})*", text) or text.count("x") >= MAX_RANK:
            self.fail(f"expected a tile shape such as 128x64, found {text!r}", start)
        return tuple(map(int, text.split("x")))

    # ---- sizes

    def dim(self) -> Dim:
        """A size: sums of products of integers, size names, `//`, `%`, min and max."""
        start = self.next.position
        self.quotients = 0
        try:
            return self._sum()
        except OverflowError as error:
            self.fail(f"expected a size of a sane length: {error}", start)

    def _sum(self) -> Dim:
        self.deeper("size expressions are")
        total = self._product()
        while True:
            if self.accept("+"):
                total = add(total, self._product())
            elif self.accept("-"):
                total = add(total, mul(self._product(), -1))
            elif self.next.kind == "number" and self.next.text.startswith("-"):
                total = add(total, self._product())
            else:
                self.depth -= 1
                return total

    def _product(self) -> Dim:
        total = self._factor()
        while True:
            token = self.next
            if token.kind != "mark" or token.text not in ("*", "//", "%"):
                return total
            self.take()
            factor = self._factor()
            if token.text == "*":
                total = mul(total, factor)
            else:
                if isinstance(factor, int) and factor < 1:
                    self.fail(f"expected a positive divisor, found {factor}", token.position)
                self._count_quotient(token)
                total = floordiv(total, factor) if token.text == "//" else mod(total, factor)
            numbers = [c for _, c in total.terms] if isinstance(total, Expr) else [total]
            if any(n.bit_length() > MAX_BITS for n in numbers):
                self.fail(f"expected a size of at most {MAX_BITS} bits", token.position)

    def _count_quotient(self, token: Token) -> None:
        # each may nest the one before, which is as deep as nested brackets and as slow to hash
        self.quotients += 1
        if self.quotients > MAX_NESTING:
            self.fail(f"expected at most {MAX_NESTING} of //, %, min and max", token.position)

    def _factor(self) -> Dim:
        token = self.next
        if token.kind == "number":
            return self.integer()
        if self.accept("-"):
            self.deeper("signs are")
            negative = mul(self._factor(), -1)
            self.depth -= 1
            return negative
        if self.accept("("):
            inner = self._sum()
            self.expect(")")
            return inner
        if token.text in ("min", "max") and self.peek(1) == ["("]:
            self._count_quotient(token)
            self.at += 2
            a = self._sum()
            self.expect(",")
            b = self._sum()
            self.expect(")")
            return minimum(a, b) if token.text == "min" else maximum(a, b)
        if token.kind == "word" and token.text in self.symbols:
            self.take()
            return self.symbols[token.text]
        known = f" ({', '.join(self.symbols)})" if self.symbols else ""
        self.fail(f"expected a size: an integer or a size name{known}, found {token.text!r}")
