"""Text to IR. Errors carry line, column and what was expected; nothing in the text is executed."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn

import numpy as np

from stack.errors import ParseError, RuleError
from stack.ir import builder, ops
from stack.ir.data import Data, lookup, parse_scalar
from stack.ir.dim import INF, Dim, add, floordiv, maximum, minimum, mod, mul, symbol
from stack.ir.node import Block, Func, Node
from stack.ir.types import DTYPES, I64, SPACES, DType, TensorType, TupleType, Type

_TOKEN = re.compile(
    r"""(?P<space>(?:\s|//\ [^\n]*)+)
    |(?P<string>"(?:[^"\\\n]|\\.)*")
    |(?P<name>[%@][A-Za-z0-9_][A-Za-z0-9_.]*|%[^\W\d][\w.]*|@[\w.]+)
    |(?P<number>-?(?:inf\b|nan(?:\.[0-9a-f]+)?\b|\d+(?:\.(?!\.)\d*)?(?:e[+-]?\d+)?)
       (?:~-?(?:inf\b|nan\b|\d+(?:\.\d*)?(?:e[+-]?\d+)?))?)
    |(?P<word>[^\W\d]\w*)
    |(?P<mark>->|\.\.|//|[(){}\[\]<>,:=+\-*%@])""",
    re.VERBOSE,
)

MAX_NESTING = 64


@dataclass
class _Token:
    kind: str
    text: str
    position: int


@dataclass
class _Scope:
    """Values by name. Open blocks share the tables of the closed block around them."""

    values: dict[str, Node]
    names: dict[Node, str] = field(default_factory=dict)
    locs: dict[Node, tuple[str, ...]] = field(default_factory=dict)


def parse(text: str, data: Mapping[str, np.ndarray] | None = None) -> Func:
    """Read one function.

    Args:
        text: what `str(func)` gave, or what a person wrote.
        data: arrays of elided constants by digest; those alive in this process need no entry.

    Raises:
        ParseError: with `.line`, `.column` and the expected token.
    """
    return _Parser(text, data or {}).func()


class _Parser:
    def __init__(self, text: str, data: Mapping[str, np.ndarray]) -> None:
        self.text = text
        self.data = data
        self.symbols: dict[str, Dim] = {}
        self.tokens = self._tokenize()
        self.at = 0
        self.depth = 0

    # ---- tokens

    def _tokenize(self) -> list[_Token]:
        tokens: list[_Token] = []
        position = 0
        while position < len(self.text):
            match = _TOKEN.match(self.text, position)
            if match is None:
                self._fail(f"unexpected character {self.text[position]!r}", position)
            kind = match.lastgroup or ""
            if kind != "space":
                tokens.append(_Token(kind, match.group(), position))
            position = match.end()
        tokens.append(_Token("end", "end of text", len(self.text)))
        return tokens

    def _fail(self, message: str, position: int | None = None) -> NoReturn:
        if position is None:
            position = self.tokens[self.at].position
        before = self.text[:position]
        column = position - (before.rfind("\n") + 1) + 1
        raise ParseError(message, before.count("\n") + 1, column)

    @property
    def next(self) -> _Token:
        return self.tokens[self.at]

    def take(self) -> _Token:
        token = self.tokens[self.at]
        if token.kind != "end":
            self.at += 1
        return token

    def accept(self, text: str) -> bool:
        if self.next.text == text and self.next.kind in ("mark", "word"):
            self.at += 1
            return True
        return False

    def expect(self, text: str) -> None:
        if not self.accept(text):
            self._fail(f"expected {text!r}, found {self.next.text!r}")

    def expect_kind(self, kind: str, what: str) -> _Token:
        if self.next.kind != kind:
            self._fail(f"expected {what}, found {self.next.text!r}")
        return self.take()

    def integer(self) -> int:
        token = self.expect_kind("number", "an integer")
        try:
            return int(token.text)
        except ValueError:
            self._fail(f"expected an integer, found {token.text!r}", token.position)

    # ---- functions and blocks

    def func(self) -> Func:
        self.expect("func")
        name = self.expect_kind("name", "a function name such as @main")
        if not name.text.startswith("@"):
            self._fail(f"expected a function name such as @main, found {name.text!r}", name.position)
        if self.accept("<"):
            self._symbols()
        self.expect("(")
        params = self._params(")", level_open=None)
        self.expect("->")
        self.expect("(")
        expected = self._types(")")
        self.expect("at")
        level = self.expect_kind("word", f"a level ({', '.join(ops.LEVELS)})")
        if level.text not in ops.LEVELS:
            self._fail(f"expected a level ({', '.join(ops.LEVELS)}), found {level.text!r}", level.position)
        self.expect("{")
        scope = _Scope({})
        for p in params:
            self._bind(scope, str(p.attrs["name"]), p)
        results = self._body(scope)
        if self.next.kind != "end":
            self._fail(f"expected the end of the text, found {self.next.text!r}")
        if [r.type for r in results] != expected:
            self._fail(f"the header promises ({', '.join(map(str, expected))}), the body returns"
                       f" ({', '.join(str(r.type) for r in results)})", 0)
        return Func(name.text[1:], Block(params, results, scope.names, scope.locs), level.text)

    def _symbols(self) -> None:
        while True:
            name = self.expect_kind("word", "a size name")
            self.expect("in")
            low = self.integer()
            self.expect("..")
            high = self.integer() if self.next.kind == "number" else INF
            multiple = self.integer() if self.accept("%") else 1
            if name.text in self.symbols or low > high or multiple < 1:
                self._fail(f"bad size {name.text!r}: named twice, or an empty range", name.position)
            self.symbols[name.text] = symbol(name.text, low, high, multiple)
            if not self.accept(","):
                self.expect(">")
                return

    def _params(self, close: str, level_open: bool | None) -> list[Node]:
        """Parameters up to `close`; `level_open` says whether they are variables of a loop."""
        params: list[Node] = []
        taken: set[str] = set()
        while not self.accept(close):
            if params:
                self.expect(",")
            token = self.expect_kind("name", "a parameter such as %x")
            name = token.text[1:]
            if not token.text.startswith("%") or name in taken:
                self._fail(f"expected a new parameter name, found {token.text!r}", token.position)
            taken.add(name)
            if level_open and self.accept("<"):
                attrs: dict[str, Any] = {"name": name, "extent": self.dim()}
                params.append(Node("var", (), attrs, TensorType(I64, ())))
                continue
            self.expect(":")
            op = "var" if level_open else "param"
            params.append(Node(op, (), {"name": name}, self.type()))
        return params

    def _bind(self, scope: _Scope, name: str, node: Node) -> None:
        if name in scope.values:
            self._fail(f"%{name} is defined twice")
        scope.values[name] = node

    def _body(self, scope: _Scope) -> list[Node]:
        while not self.accept("return"):
            if self.next.kind != "name":
                self._fail(f"expected a value such as %x or 'return', found {self.next.text!r}")
            self._statement(scope)
        results: list[Node] = []
        if not self.accept("}"):
            results.append(self._operand(scope))
            while not self.accept("}"):
                self.expect(",")
                results.append(self._operand(scope))
        return results

    def _statement(self, scope: _Scope) -> None:
        target = self.take()
        if not target.text.startswith("%"):
            self._fail(f"expected a value such as %x, found {target.text!r}", target.position)
        self.expect("=")
        op_token = self.expect_kind("word", "an op name")
        try:
            op = ops.lookup(op_token.text)
        except RuleError as error:
            self._fail(f"expected an op name: {error}", op_token.position)
        self.expect("(")
        args: list[Node] = []
        while not self.accept(")"):
            if args:
                self.expect(",")
            args.append(self._operand(scope))
        attrs = self._attrs() if self.next.text == "{" else {}
        self.expect(":")
        type_ = self.type()
        places: list[str] = []
        if self.accept("from"):
            places.append(self._string())
            while self.accept(","):
                places.append(self._string())
        blocks: list[Block] = []
        while self.accept("{"):
            blocks.append(self._block(scope, op.closed))
        try:
            inferred = ops.infer_type(op.name, args, attrs, blocks, type_)
        except (RuleError, TypeError, ValueError, KeyError, AttributeError, IndexError) as error:
            self._fail(f"{error}", op_token.position)
        if inferred != type_:
            self._fail(f"{op.name} gives {inferred}, the text says {type_}", op_token.position)
        try:
            node = Node(op.name, args, attrs, type_, blocks)
        except TypeError as error:
            self._fail(str(error), op_token.position)
        name = target.text[1:]
        self._bind(scope, name, node)
        scope.names.setdefault(node, name)
        if places:
            scope.locs[node] = tuple(places)

    def _string(self) -> str:
        token = self.expect_kind("string", 'a quoted text such as "a.py:1"')
        try:
            return json.loads(token.text)
        except ValueError:
            self._fail(f"expected a quoted text, found {token.text}", token.position)

    def _block(self, scope: _Scope, closed: bool) -> Block:
        self.depth += 1
        if self.depth > MAX_NESTING:
            self._fail(f"blocks are nested more than {MAX_NESTING} deep")
        self.expect("(")
        params = self._params(")", level_open=not closed)
        inner = _Scope({}) if closed else _Scope(dict(scope.values), scope.names, scope.locs)
        for p in params:
            self._bind(inner, str(p.attrs["name"]), p)
        results = self._body(inner)
        self.depth -= 1
        if closed:
            return Block(params, results, inner.names, inner.locs)
        return Block(params, results)

    def _operand(self, scope: _Scope) -> Node:
        token = self.take()
        if token.kind == "name":
            name = token.text[1:]
            if not token.text.startswith("%") or name not in scope.values:
                self._fail(f"expected a value defined above, found {token.text!r}", token.position)
            return scope.values[name]
        if token.kind == "number" or token.text in ("true", "false"):
            self.expect(":")
            dtype = self.dtype()
            return builder.constant(self._scalar(token, dtype), dtype)
        self._fail(f"expected a value such as %x or 1.0:f32, found {token.text!r}", token.position)

    def _scalar(self, token: _Token, dtype: DType) -> np.ndarray:
        try:
            return parse_scalar(token.text, dtype)
        except (ValueError, OverflowError) as error:
            self._fail(f"expected a number of type {dtype}: {error}", token.position)

    # ---- attributes

    def _attrs(self) -> dict[str, Any]:
        self.expect("{")
        attrs: dict[str, Any] = {}
        while not self.accept("}"):
            if attrs:
                self.expect(",")
            name = self.expect_kind("word", "an attribute name")
            if name.text in attrs:
                self._fail(f"attribute {name.text!r} is given twice", name.position)
            self.expect("=")
            attrs[name.text] = self._attr()
        return attrs

    def _attr(self) -> Any:
        token = self.next
        if self.accept("["):
            self.depth += 1
            if self.depth > MAX_NESTING:
                self._fail(f"lists are nested more than {MAX_NESTING} deep")
            items: list[Any] = []
            while not self.accept("]"):
                if items:
                    self.expect(",")
                items.append(self._attr())
            self.depth -= 1
            return tuple(items)
        if token.kind == "string":
            return self._string()
        for word, value in (("true", True), ("false", False), ("none", None)):
            if self.accept(word):
                return value
        if self.accept("type"):
            return self.dtype()
        if token.text == "data":
            return self._data()
        following = self.tokens[self.at + 1 : self.at + 3]
        if token.kind == "number" and [t.text for t in following] == [":", "float"]:
            self.at += 3
            try:
                return float(token.text)
            except ValueError:
                self._fail(f"expected a float, found {token.text!r}", token.position)
        return self.dim()

    def _data(self) -> Data:
        start = self.take().position
        self.expect("<")
        dtype = self.dtype()
        self.expect("[")
        shape: list[int] = []
        while not self.accept("]"):
            if shape:
                self.expect(",")
            shape.append(self.integer())
            if shape[-1] < 0:
                self._fail("expected a size, found a negative number")
        self.expect(",")
        if self.next.text != "[":
            return self._elided(dtype, tuple(shape), start)
        self.take()
        values: list[np.ndarray] = []
        while not self.accept("]"):
            if values:
                self.expect(",")
            values.append(self._scalar(self.take(), dtype))
        self.expect(">")
        if len(values) != int(np.prod(shape, dtype=np.int64)):
            self._fail(f"expected {shape} values, found {len(values)}", start)
        raw = b"".join(np.asarray(v, dtype=dtype.numpy).tobytes() for v in values)
        return Data(np.frombuffer(raw, dtype=dtype.numpy).reshape(shape), dtype)

    def _elided(self, dtype: DType, shape: tuple[int, ...], start: int) -> Data:
        close = self.text.find(">", self.next.position)
        digest = self.text[self.next.position : close].strip() if close >= 0 else ""
        if not re.fullmatch(r"[0-9a-f]{32}", digest):
            self._fail("expected the 32 hexadecimal digits of a constant")
        while self.next.kind != "end" and self.next.position < close:
            self.take()
        self.expect(">")
        found = lookup(digest)
        if found is None and digest in self.data:
            found = Data(np.asarray(self.data[digest]), dtype)
        if found is None or found.digest != digest or (found.dtype, found.shape) != (dtype, shape):
            self._fail(
                f"expected a constant {dtype}{list(shape)} with digest {digest}: it is not in memory"
                " nor in the side file (pass data=, or keep constants.npz beside the text)",
                start,
            )
        return found

    # ---- types and sizes

    def dtype(self) -> DType:
        token = self.expect_kind("word", "an element type such as f32")
        if token.text not in DTYPES:
            self._fail(f"expected an element type ({', '.join(DTYPES)}), found {token.text!r}",
                       token.position)
        return DTYPES[token.text]

    def _types(self, close: str) -> list[TensorType]:
        types: list[TensorType] = []
        while not self.accept(close):
            if types:
                self.expect(",")
            types.append(self._tensor_type())
        return types

    def type(self) -> Type:
        if self.accept("("):
            return TupleType(tuple(self._types(")")))
        return self._tensor_type()

    def _tensor_type(self) -> TensorType:
        dtype = self.dtype()
        if self.accept("<"):
            return TensorType(dtype, self._tile_shape(), "tile")
        self.expect("[")
        shape: list[Dim] = []
        while not self.accept("]"):
            if shape:
                self.expect(",")
            start = self.next.position
            shape.append(self.dim())
            size = shape[-1]
            if isinstance(size, int) and size < 0:
                self._fail(f"expected a size, found {size}", start)
        if not self.accept("in"):
            return TensorType(dtype, tuple(shape))
        space = self.expect_kind("word", f"a memory space ({', '.join(SPACES[2:])})")
        if space.text not in SPACES[2:]:
            self._fail(f"expected a memory space ({', '.join(SPACES[2:])}), found {space.text!r}",
                       space.position)
        return TensorType(dtype, tuple(shape), space.text)

    def _tile_shape(self) -> tuple[int, ...]:
        # "128x64" reads as the number 128 and the word x64
        if self.accept(">"):
            return ()
        text = ""
        start = self.next.position
        while not self.accept(">"):
            if self.next.kind not in ("number", "word"):
                self._fail(f"expected a tile shape such as 128x64, found {self.next.text!r}")
            text += self.take().text
        if not re.fullmatch(r"\d+(x\d+)*", text):
            self._fail(f"expected a tile shape such as 128x64, found {text!r}", start)
        return tuple(map(int, text.split("x")))

    def dim(self) -> Dim:
        """A size: sums of products of integers, size names, `//`, `%`, min and max."""
        self.depth += 1
        if self.depth > MAX_NESTING:
            self._fail(f"expressions are nested more than {MAX_NESTING} deep")
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
            start = self.next.position
            for mark, operation in (("*", mul), ("//", floordiv), ("%", mod)):
                if self.accept(mark):
                    factor = self._factor()
                    if mark != "*" and isinstance(factor, int) and factor < 1:
                        self._fail(f"expected a positive divisor, found {factor}", start)
                    total = operation(total, factor)
                    break
            else:
                return total

    def _factor(self) -> Dim:
        token = self.next
        if token.kind == "number":
            return self.integer()
        if self.accept("-"):
            return mul(self._factor(), -1)
        if self.accept("("):
            inner = self.dim()
            self.expect(")")
            return inner
        if token.text in ("min", "max") and self.tokens[self.at + 1].text == "(":
            self.take()
            self.take()
            a = self.dim()
            self.expect(",")
            b = self.dim()
            self.expect(")")
            return minimum(a, b) if token.text == "min" else maximum(a, b)
        if token.kind == "word" and token.text in self.symbols:
            self.take()
            return self.symbols[token.text]
        known = f" ({', '.join(self.symbols)})" if self.symbols else ""
        self._fail(f"expected a size: an integer or a size name{known}, found {token.text!r}")
