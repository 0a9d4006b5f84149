"""Plain text tables and short numbers, for terminals and notes."""

from __future__ import annotations

import os
import re
import sys
import textwrap
from collections.abc import Iterable, Sequence

_NUMBER = re.compile(r"[-+~<>]?\d[\d.,]*(?:e[-+]?\d+)?(?:\s?(?:%|x|ms|s|us|k|M|G|[kMGT]i?B|B))?")
_STEPS = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def table(head: Sequence[str], rows: Iterable[Sequence[object]], widest: int = 60) -> str:
    """Formats a table with aligned columns: numbers to the right, text to the left.

    Cells longer than `widest` are cut in the middle, except in the last column. If the terminal is
    too narrow, each row is printed as several lines.
    """
    cells = [[_cell(c) for c in row] for row in rows]
    width = terminal_width()
    made = _aligned(head, cells, widest)
    too_wide = width is not None and max(map(len, made.splitlines())) > width
    return _stacked(head, cells, width) if too_wide and width and cells else made


def listing(rows: Iterable[tuple[str, str]], column: int = 22) -> str:
    """Formats `name: value` lines with aligned values; wraps in a narrow terminal."""
    width = terminal_width()
    lines = [f"{what + ':':{column}}{value}" for what, value in rows]
    if width is None or max(map(len, lines), default=0) <= width:
        return "\n".join(lines)
    filled = (textwrap.fill(f"{w}: {v}", width, subsequent_indent="  ") for w, v in rows)
    return "\n".join(filled)


def terminal_width() -> int | None:
    """Returns the terminal's columns, or COLUMNS; None for a file or a pipe."""
    asked = os.environ.get("COLUMNS", "")
    if asked.isdigit() and int(asked) > 0:
        return int(asked)
    try:
        return os.get_terminal_size(sys.stdout.fileno()).columns if sys.stdout.isatty() else None
    except (OSError, ValueError):
        return None


def _stacked(head: Sequence[str], cells: Sequence[Sequence[str]], width: int) -> str:
    """Formats each row as a block, one line per non-empty cell."""
    blocks: list[str] = []
    for row in cells:
        pairs = [
            (name, text) for name, text in zip(head, row, strict=True) if text not in ("", "-")
        ]
        lines = [textwrap.fill(f"{n}: {t}", width, subsequent_indent="  ") for n, t in pairs]
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks)


def _aligned(head: Sequence[str], cells: Sequence[Sequence[str]], widest: int) -> str:
    last = len(head) - 1
    short = [
        [text if i == last else cut(text, widest) for i, text in enumerate(row)] for row in cells
    ]
    right = [_is_number_column([row[i] for row in short]) for i in range(len(head))]
    widths = [max(len(text) for text in column) for column in zip(head, *short, strict=True)]
    lines: list[str] = []
    for row in (list(head), *short):
        parts = [
            text.rjust(width) if flush else text.ljust(width)
            for text, width, flush in zip(row, widths, right, strict=True)
        ]
        lines.append("  ".join(parts).rstrip())
    lines.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join(lines)


def cut(text: str, width: int) -> str:
    """Shortens a text to `width` characters by cutting its middle."""
    if len(text) <= width:
        return text
    head = (width - 3) // 2
    return f"{text[:head]}...{text[len(text) - (width - 3 - head) :]}"


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else ""
    if isinstance(value, float):
        return number(value)
    return str(value)


def _is_number_column(texts: Sequence[str]) -> bool:
    shown = [t for t in texts if t not in ("", "-")]
    return bool(shown) and all(_NUMBER.fullmatch(t) for t in shown)


def number(value: float) -> str:
    """Formats about three digits: 0.0123, 1.23, 123, 12300."""
    if value == 0:
        return "0"
    size = abs(value)
    if size < 1e-3 or size >= 1e6:
        return f"{value:.2g}"
    if size >= 100:
        return f"{value:.0f}"
    return f"{value:.3g}" if size < 1 else f"{value:.2f}"


def scaled(value: float | None, unit: str = "") -> str:
    """Formats a count with a prefix: 1.21 G, 340 k; with a unit 1.21 GB."""
    if value is None:
        return "-"
    for step, prefix in _STEPS:
        if abs(value) >= step:
            return f"{value / step:.3g} {prefix}{unit}"
    return f"{value:.3g} {unit}".rstrip()
