"""Tokenizes IR text. A cursor over the tokens reports errors with line, column and expectation."""

from __future__ import annotations

import re
from collections.abc import Sized
from typing import NamedTuple, NoReturn

from stack.errors import ParseError

_TOKEN = re.compile(
    r"""(?P<space>(?:\s|//\ [^\n]*)+)
    |(?P<string>"(?:[^"\\\n]|\\.)*")
    |(?P<name>[%@][\w.]+)
    |(?P<number>-?(?:inf\b|nan(?:\.[0-9a-f]+)?\b|\d+(?:\.(?!\.)\d*)?(?:e[+-]?\d+)?)
       (?:~-?(?:inf\b|nan(?:\.[0-9a-f]+)?\b|\d+(?:\.\d*)?(?:e[+-]?\d+)?))?)
    |(?P<word>[^\W\d]\w*)
    |(?P<mark>->|\.\.|//|[(){}\[\]<>,:=+\-*%@?])""",
    re.VERBOSE,
)

MAX_NESTING = 100
MAX_DIGITS = 40


class Token(NamedTuple):
    """A token of kind string, name, number, word, mark, or end (the end of the text)."""

    kind: str
    text: str
    position: int


def fail_at(text: str, position: int, message: str) -> NoReturn:
    """Raises ParseError for a position in a text."""
    before = text[:position]
    column = position - (before.rfind("\n") + 1) + 1
    raise ParseError(message, before.count("\n") + 1, column)


def tokenize(text: str) -> list[Token]:
    """All tokens, terminated by one of kind `end`."""
    tokens: list[Token] = []
    position = 0
    for match in _TOKEN.finditer(text):
        if match.start() != position:
            break
        kind = match.lastgroup
        if kind is not None and kind != "space":
            tokens.append(Token(kind, match.group(), position))
        position = match.end()
    if position != len(text):
        fail_at(text, position, f"unexpected character {text[position]!r}")
    tokens.append(Token("end", "end of text", position))
    return tokens


class Cursor:
    """Reads tokens one after another. Every error names what was expected."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens = tokenize(text)
        self.at: int = 0
        self.depth: int = 0

    def fail(self, message: str, position: int | None = None) -> NoReturn:
        """Raises ParseError, at the next token if no position is given."""
        fail_at(self.text, self.next.position if position is None else position, message)

    @property
    def next(self) -> Token:
        """The next token, without consuming it."""
        return self.tokens[self.at]

    def peek(self, count: int) -> list[str]:
        """Texts of the tokens after the next one."""
        return [t.text for t in self.tokens[self.at + 1 : self.at + 1 + count]]

    def take(self) -> Token:
        """Consumes and returns the next token."""
        token = self.tokens[self.at]
        if token.kind != "end":
            self.at += 1
        return token

    def accept(self, text: str) -> bool:
        """Consumes the next token and returns True if it is this punctuation mark or word; else
        returns False.
        """
        token = self.tokens[self.at]
        if token.text == text and token.kind in ("mark", "word"):
            self.at += 1
            return True
        return False

    def expect(self, text: str) -> None:
        """Consumes the next token if it is this mark or word; else raises ParseError."""
        if not self.accept(text):
            self.fail(f"expected {text!r}, found {self.next.text!r}")

    def more(self, close: str, items: Sized) -> bool:
        """True if a list in the text continues after the entries `items`. Consumes the comma before
        the next entry, or the mark `close` at the end of the list.
        """
        if self.accept(close):
            return False
        if items and not self.accept(","):
            self.fail(f"expected ',' or {close!r}, found {self.next.text!r}")
        return True

    def expect_kind(self, kind: str, what: str) -> Token:
        """Consumes a token of this kind, or fails; `what` describes it in the message."""
        if self.next.kind != kind:
            self.fail(f"expected {what}, found {self.next.text!r}")
        return self.take()

    def integer(self) -> int:
        """Consumes an integer of limited length."""
        token = self.expect_kind("number", "an integer")
        if len(token.text) > MAX_DIGITS:
            self.fail(f"expected an integer of at most {MAX_DIGITS} digits", token.position)
        try:
            return int(token.text)
        except ValueError:
            self.fail(f"expected an integer, found {token.text!r}", token.position)

    def deeper(self, what: str) -> None:
        """Counts one more level of nesting. The caller leaves the level by `self.depth -= 1`. Fails
        beyond the limit; `what` names what is nested.
        """
        self.depth += 1
        if self.depth > MAX_NESTING:
            self.fail(f"{what} nested more than {MAX_NESTING} deep")
