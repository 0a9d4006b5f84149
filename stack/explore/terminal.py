"""The terminal that a command prints to: its width, its colours, and whether all is to be shown."""

from __future__ import annotations

import os
import sys
import textwrap
from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

PIPE = 100  # columns of a command's output in a file or a pipe
_RED = "\x1b[31m"
_END = "\x1b[0m"


@dataclass(frozen=True)
class View:
    """The format of printed tables.

    Attributes:
        width: columns that a line may have; None for any number.
        is_whole: every column, cell and row is printed, whatever the width.
        is_coloured: cells that are `Loud` are red.
        way_out: says how to see what is not shown.
    """

    width: int | None
    is_whole: bool = False
    is_coloured: bool = False
    way_out: str = ""


_VIEW: ContextVar[View | None] = ContextVar("view", default=None)


def view() -> View:
    """Returns the view of the running command; outside of commands that of the terminal."""
    return _VIEW.get() or View(terminal_width())


@contextmanager
def viewed(is_whole: bool) -> Generator[None, None, None]:
    """Context in which tables fit the terminal's width, or are whole, as with `--wide`.

    Commands run in it. Cells that are `Loud` have colours if the terminal shows them.
    """
    width = None if is_whole else terminal_width() or PIPE
    token = _VIEW.set(View(width, is_whole, has_colours(), "--wide shows all"))
    try:
        yield
    finally:
        _VIEW.reset(token)


def terminal_width() -> int | None:
    """Returns the terminal's columns, or COLUMNS; None for a file or a pipe."""
    asked = os.environ.get("COLUMNS", "")
    if asked.isdigit() and int(asked) > 0:
        return int(asked)
    try:
        return os.get_terminal_size(sys.stdout.fileno()).columns if sys.stdout.isatty() else None
    except (OSError, ValueError):
        return None


def has_colours() -> bool:
    """True if stdout shows colours. NO_COLOR switches them off, FORCE_COLOR on, in this order."""
    if os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR"):
        return True
    return os.environ.get("TERM") != "dumb" and sys.stdout.isatty()


class Loud(str):
    """A text that has to be noticed: a fallback, a wrong result, a lost comparison."""


def painted(text: str, original: str) -> str:
    """Returns `text`, a part of the table cell `original`, in red if that cell is `Loud`.

    Without colours in the current view, returns the text as it is.
    """
    if text.strip() and isinstance(original, Loud) and view().is_coloured:
        return f"{_RED}{text}{_END}"
    return text


def filled(text: str, indent: str = "  ") -> str:
    """Wraps the lines of a text that are wider than the terminal; `indent` starts new lines."""
    width = view().width
    if width is None:
        return text
    return "\n".join(_filled(line, width, indent) for line in text.splitlines())


def _filled(line: str, width: int, indent: str) -> str:
    if len(line) <= width:
        return line
    before = line[: len(line) - len(line.lstrip())]
    return textwrap.fill(
        line.strip(),
        width,
        initial_indent=before,
        subsequent_indent=before + indent,
        break_on_hyphens=False,
    )
