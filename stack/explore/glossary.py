"""The glossary: one line and a source for every pass, attribute, option, kind and word of notes."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

KINDS = ("pass", "attribute", "option", "loop", "kernel", "space", "note", "word")


@dataclass(frozen=True)
class Entry:
    """One term.

    Attributes:
        term: as it is written in pipelines, IR text and notes.
        kind: one of `KINDS`: what has this name; of loops, kernels and memory spaces, which.
        line: what it means.
        source: whose word it is: a paper, a section, a documentation.
    """

    term: str
    kind: str
    line: str
    source: str


@cache
def entries() -> tuple[Entry, ...]:
    """The whole glossary, by kind."""
    text = files("stack.explore").joinpath("glossary.toml").read_text(encoding="utf-8")
    tables = tomllib.loads(text)
    return tuple(
        Entry(term, kind, line, source)
        for kind in KINDS
        for term, (line, source) in tables[kind].items()
    )


def terms(kind: str) -> frozenset[str]:
    """The terms of one kind."""
    return frozenset(e.term for e in entries() if e.kind == kind)
