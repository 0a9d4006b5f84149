"""Help texts that fit the terminal: paragraphs, lists and commands are wrapped, each in its way."""

from __future__ import annotations

import argparse
import re
import textwrap
from collections.abc import Iterator

_ITEM = re.compile(r"\s+\S+(?: \S+)*\s{2,}(?=\S)")  # `  G1, G2    `, before what it means
_COMMAND = ("stackc ", "python ", "make ")


class Help(argparse.HelpFormatter):
    """Wraps paragraphs and list items of a command's description, but leaves commands separate."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return "\n".join(
            line for first, words in _parts(text) for line in _fill(first, words, width)
        )


def _parts(text: str) -> Iterator[tuple[str, str]]:
    """Splits a command's description into paragraphs, list items, commands and empty lines.

    Yields for each its start (spaces, or the sign of the item), and its words, with all lines of a
    paragraph or of an item joined.
    """
    first, words = "", ""
    for line in text.splitlines():
        found = _ITEM.match(line)
        indent = len(line) - len(line.lstrip())
        is_command = line.strip().startswith(_COMMAND)
        if words and line.strip() and not is_command and not found and indent == len(first):
            words += f" {line.strip()}"
            continue
        if words:
            yield first, words
        if not line.strip():
            yield "", ""
        first, words = "", ""
        if is_command:
            yield " " * indent, line.strip()
        elif line.strip():
            first = found[0] if found else " " * indent
            words = line[len(first) :].strip()
    if words:
        yield first, words


def _fill(first: str, words: str, width: int) -> list[str]:
    if len(first) + len(words) <= width:
        return [first + words]
    if words.startswith(_COMMAND):
        return _command(first, words, width)
    after = " " * len(first)
    return textwrap.wrap(
        words, width, initial_indent=first, subsequent_indent=after, break_on_hyphens=False
    )


def _command(indent: str, words: str, width: int) -> list[str]:
    """Formats a command of a description in lines of at most `width`.

    The words beside the command go below it; a long command continues before an option.
    """
    command, *beside = re.split(r"\s{2,}", words, maxsplit=1)
    lines = [indent]
    for part in re.split(r" (?=-)", command):
        if len(lines[-1]) + len(part) + 3 > width and lines[-1].strip():
            lines[-1] += " \\"
            lines.append(f"{indent}    {part}")
        else:
            lines[-1] += f" {part}" if lines[-1].strip() else part
    more = f"{indent}    "
    for text in beside:
        lines += textwrap.wrap(text, width, initial_indent=more, subsequent_indent=more)
    return lines
