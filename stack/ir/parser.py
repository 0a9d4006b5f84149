"""Parses IR text. Errors carry line, column and expectation. No text is executed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from stack.errors import RuleError
from stack.ir.data import Data
from stack.ir.dim import INF, symbol
from stack.ir.func import Func
from stack.ir.lexer import fail_at
from stack.ir.node import Block, Node
from stack.ir.ops import LEVELS, infer_type, lookup
from stack.ir.types import I64, TensorType, Type
from stack.ir.value_parser import ValueParser


@dataclass
class _Scope:
    """Values by name. Open blocks share the tables of the enclosing closed block."""

    values: dict[str, Node]
    names: dict[Node, str] = field(default_factory=dict[Node, str])
    locs: dict[Node, tuple[str, ...]] = field(default_factory=dict[Node, tuple[str, ...]])


def parse(text: str, data: Mapping[str, np.ndarray[Any, Any]] | None = None) -> Func:
    """Parses one function.

    Args:
        text: the output of `str(func)`, or text written by hand.
        data: arrays of elided constants by digest; constants alive in this process need no entry.

    Raises:
        ParseError: with `.line`, `.column` and the expected token.
    """
    parser = _Parser(text, data or {})
    try:
        return parser.func()
    except RecursionError:
        fail_at(text, parser.next.position, "expected a text that is nested less deeply")


class _Parser(ValueParser):
    def func(self) -> Func:
        self.expect("func")
        name = self._name("@", "a function name such as @main")
        if self.accept("<"):
            self._symbols()
        self.expect("(")
        params = self._params(")", is_open=False)
        arrow = self.next.position
        self.expect("->")
        self.expect("(")
        expected = self.types(")")
        self.expect("at")
        levels = ", ".join(LEVELS)
        level = self.expect_kind("word", f"a level ({levels})")
        if level.text not in LEVELS:
            self.fail(f"expected a level ({levels}), found {level.text!r}", level.position)
        self.expect("{")
        scope = _Scope({})
        self._bind_all(scope, params)
        results = self._body(scope)
        if self.next.kind != "end":
            self.fail(f"expected the end of the text, found {self.next.text!r}")
        returned: list[Type] = [r.type for r in results]
        if returned != expected:
            promise, given = (", ".join(map(str, types)) for types in (expected, returned))
            self.fail(f"the header declares ({promise}), the body returns ({given})", arrow)
        return Func(name, Block(params, results, scope.names, scope.locs), level.text)

    def _name(self, mark: str, what: str) -> str:
        token = self.next
        if token.kind != "name" or token.text[0] != mark:
            self.fail(f"expected {what}, found {token.text!r}")
        name = self.take().text[1:]
        if name.strip(".") != name:
            self.fail(f"expected {what}: names neither start nor end with a dot", token.position)
        return name

    def _symbols(self) -> None:
        while True:
            if self.next.text[0] == "@":
                self.shardings.mesh()
                if not self.accept(","):
                    self.expect(">")
                    return
                continue
            name = self.expect_kind("word", "a size name")
            self.expect("in")
            low = self.integer() if self.next.kind == "number" else -INF
            self.expect("..")
            high = self.integer() if self.next.kind == "number" else INF
            multiple = self.integer() if self.accept("%") else 1
            if name.text in self.symbols:
                self.fail(f"the size {name.text!r} is declared twice", name.position)
            try:
                self.symbols[name.text] = symbol(name.text, low, high, multiple)
            except ValueError as error:
                self.fail(f"expected a size with a value: {error}", name.position)
            if not self.accept(","):
                self.expect(">")
                return

    # ---- blocks

    def _params(self, close: str, is_open: bool) -> list[Node]:
        """Parameters up to `close`; loop variables if the block is open."""
        params: list[Node] = []
        taken: set[str] = set()
        while self.more(close, params):
            position = self.next.position
            name = self._name("%", "a parameter such as %x")
            if name in taken:
                self.fail(f"expected a new parameter name, found %{name} again", position)
            taken.add(name)
            if is_open and self.accept("<"):
                attrs: dict[str, Any] = {"name": name, "extent": self.dim()}
                kind = self.dtype() if self.accept(":") else I64
                params.append(Node("var", (), attrs, TensorType(kind, ())))
                continue
            self.expect(":")
            params.append(Node("var" if is_open else "param", (), {"name": name}, self.type()))
        return params

    def _bind_all(self, scope: _Scope, params: list[Node]) -> None:
        for p in params:
            self._bind(scope, str(p.attrs["name"]), p)

    def _bind(self, scope: _Scope, name: str, node: Node, position: int | None = None) -> None:
        if name in scope.values:
            self.fail(f"expected a new name, %{name} is defined above", position)
        scope.values[name] = node

    def _body(self, scope: _Scope) -> list[Node]:
        while not self.accept("return"):
            if self.next.kind != "name":
                self.fail(f"expected a value such as %x or 'return', found {self.next.text!r}")
            self._statement(scope)
        results: list[Node] = []
        while self.more("}", results):
            results.append(self._operand(scope))
        return results

    def _block(self, scope: _Scope, closed: bool) -> Block:
        self.deeper("blocks are")
        self.expect("(")
        params = self._params(")", is_open=not closed)
        inner = _Scope({}) if closed else _Scope(dict(scope.values), scope.names, scope.locs)
        self._bind_all(inner, params)
        results = self._body(inner)
        self.depth -= 1
        if closed:
            return Block(params, results, inner.names, inner.locs)
        return Block(params, results)

    # ---- statements

    def _statement(self, scope: _Scope) -> None:
        start = self.next.position
        name = self._name("%", "a value such as %x")
        self.expect("=")
        op_token = self.expect_kind("word", "an op name")
        try:
            op = lookup(op_token.text)
        except RuleError as error:
            self.fail(f"expected an op name: {error}", op_token.position)
        if op.name in ("param", "var"):
            self.fail("expected an op: parameters belong in the header", op_token.position)
        self.expect("(")
        args: list[Node] = []
        while self.more(")", args):
            args.append(self._operand(scope))
        attrs = self.attributes() if self.next.text == "{" else {}
        self.expect(":")
        type_ = self.type()
        places: list[str] = []
        if self.accept("from"):
            places.append(self.string())
            while self.accept(","):
                places.append(self.string())
        blocks: list[Block] = []
        while self.accept("{"):
            blocks.append(self._block(scope, op.closed))
        try:
            inferred = infer_type(op.name, args, attrs, blocks, type_)
        except RuleError as error:
            self.fail(f"{error}", op_token.position)
        if inferred != type_:
            self.fail(
                f"expected type {inferred} of {op.name}, the text says {type_}", op_token.position
            )
        node = Node(op.name, args, attrs, type_, blocks)
        self._bind(scope, name, node, start)
        scope.names.setdefault(node, name)
        if places:
            scope.locs[node] = (*scope.locs.get(node, ()), *places)

    def _operand(self, scope: _Scope) -> Node:
        token = self.take()
        if token.kind == "name":
            found = scope.values.get(token.text[1:]) if token.text[0] == "%" else None
            if found is None:
                self.fail(f"expected a value defined above, found {token.text!r}", token.position)
            return found
        if token.kind == "number" or token.text in ("true", "false"):
            self.expect(":")
            dtype = self.dtype()
            data = Data(np.asarray(self.scalar(token, dtype)), dtype)
            return Node("const", (), {"value": data}, TensorType(dtype, ()))
        self.fail(f"expected a value such as %x or 1.0:f32, found {token.text!r}", token.position)
