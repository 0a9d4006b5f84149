"""Glossary: a definition and a source for every pass, attribute, option, kind and word of notes."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

KINDS = ("pass", "step", "attribute", "option", "loop", "kernel", "space", "note", "word")


@dataclass(frozen=True)
class Entry:
    """One term of the glossary.

    Attributes:
        term: spelled as in pipelines, IR text and notes.
        kind: one of `KINDS`, such as "loop" for a kind of loop, "space" for a memory space.
        line: the definition.
        source: a paper, a section or a documentation page that uses the word.
    """

    term: str
    kind: str
    line: str
    source: str


@cache
def entries() -> tuple[Entry, ...]:
    """Returns the whole glossary, sorted by kind."""
    text = files("stack.explore").joinpath("glossary.toml").read_text(encoding="utf-8")
    tables = tomllib.loads(text)
    return tuple(
        Entry(term, kind, line, source)
        for kind in KINDS
        for term, (line, source) in tables[kind].items()
    )


def terms(kind: str) -> frozenset[str]:
    """Returns the terms of one kind."""
    return frozenset(e.term for e in entries() if e.kind == kind)
