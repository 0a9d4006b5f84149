"""Plain text tables and short numbers, for terminals and notes.

Columns are fitted into a width: the least important ones are hidden, others narrowed.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from stack.explore.terminal import Loud, filled, painted, view

GAP = 2  # columns of the terminal between two columns of a table
# widths of a column: comfortable, and the least; the first has names that commands take
_FIRST = (40, 24)
_NAME = (32, 12)
_PROSE = (40, 20)


@dataclass(frozen=True)
class Column:
    """The widths that a column of a table can have, in characters.

    `natural` is that of its longest cell, `least` the smallest one allowed. Between them, other
    columns are hidden before this one becomes narrower than `comfortable`. Cells of prose wrap at
    spaces; numbers are never shortened.
    """

    natural: int
    comfortable: int
    least: int
    is_number: bool = False
    is_prose: bool = False


def column(
    head: str, cells: Sequence[str], is_first: bool, is_number: bool, is_prose: bool
) -> Column:
    """Computes the width limits of a table column from its head and its cells.

    The head is never cut.
    """
    natural = max(map(len, (head, *cells)))
    if is_number:
        return Column(natural, natural, natural, is_number=True)
    limits = _PROSE if is_prose else _FIRST if is_first else _NAME
    comfortable, least = (max(len(head), min(natural, n)) for n in limits)
    return Column(natural, comfortable, least, is_prose=is_prose)


def fit(columns: Sequence[Column], width: int, drop: Sequence[int]) -> dict[int, int]:
    """Selects the table columns that fit into `width` characters; maps their positions to widths.

    First hides columns of `drop`, in this order, until the others have their comfortable width.
    Then hides others from the right, but never the first, until their least widths fit. Finally,
    narrows the widest columns that are left.
    """
    shown = list(range(len(columns)))
    others = [i for i in reversed(shown[1:]) if i not in drop]
    for number in drop:
        if _total([columns[i].comfortable for i in shown]) > width:
            shown.remove(number)
    for number in others:
        if _total([columns[i].least for i in shown]) > width:
            shown.remove(number)
    floors = [columns[i].comfortable for i in shown]
    if _total(floors) > width:
        floors = [columns[i].least for i in shown]
    widths = [columns[i].natural for i in shown]
    while _total(widths) > width:
        widest = max(range(len(shown)), key=lambda i: (widths[i] > floors[i], widths[i]))
        if widths[widest] <= floors[widest]:
            break
        widths[widest] -= 1
    return dict(zip(shown, widths, strict=True))


def _total(widths: Sequence[int]) -> int:
    return sum(widths) + GAP * (len(widths) - 1)


_NUMBER = re.compile(
    r"[-+~<>]?\d[\d.,]*(?:e[-+]?\d+)?(?:\s?(?:%|x|ms|s|us|k|M|G|[kMGT]i?B|B))?|x \d+"
    r"|\d+\.\d+x \(\d+\.\d+ to \d+\.\d+(?:, noisy)?\)"  # a ratio with its quartiles
)
_DIGITS = re.compile(r"\d+(?:\.\d+)*(?:e[-+]?\d+)?")
_STEPS = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def table(
    head: Sequence[str],
    rows: Iterable[Sequence[object]],
    widest: int = 60,
    drop: Sequence[str] = (),
    wrap: Sequence[str] | None = None,
    note: str = "",
) -> str:
    """Formats a table with aligned columns: numbers to the right, text to the left.

    If the width is limited, the columns `drop` are hidden first, in this order, and long cells are
    shortened: those of the columns `wrap` continue in the next line, others lose their middle. A
    last line tells what is missing. Numbers stay whole.

    Args:
        widest: where no width is known, cells that do not wrap are cut to this length.
        wrap: columns of sentences or lists; by default the last column.
        note: begins the last line.
    """
    cells = [[_cell(c) for c in row] for row in rows]
    prose = head[-1:] if wrap is None else wrap
    columns: list[Column] = []
    for i, name in enumerate(head):
        texts = [row[i] for row in cells]
        columns.append(column(name, texts, i == 0, _is_number_column(texts), name in prose))
    width = view().width
    if width is None:
        most = None if view().is_whole else widest
        widths = {i: c.natural if c.is_prose else min(c.natural, most or c.natural)
                  for i, c in enumerate(columns)}  # fmt: skip
    else:
        widths = fit(columns, width, [head.index(name) for name in drop if name in head])
    lines = _lines(list(head), widths, columns)
    lines.append("  ".join("-" * w for w in widths.values()))
    for row in cells:
        lines += _lines(row, widths, columns)
    hidden = [name for i, name in enumerate(head) if i not in widths]
    is_cut = width is not None and any(
        _is_cut(row[i], w, columns[i]) for row in cells for i, w in widths.items()
    )
    return "\n".join([*lines, *_last(note, hidden, is_cut)])


def _is_cut(text: str, width: int, column: Column) -> bool:
    """True if a table cell is longer than its column; of a cell that wraps, any of its words."""
    return any(len(part) > width for part in (text.split() if column.is_prose else [text]))


def _lines(row: Sequence[str], widths: dict[int, int], columns: Sequence[Column]) -> list[str]:
    """Formats one table row as lines of text: several if one of its cells is wrapped."""
    held = [_wrapped(row[i], w) if columns[i].is_prose else [cut(row[i], w)]
            for i, w in widths.items()]  # fmt: skip
    lines: list[str] = []
    for texts in zip_longest(*held, fillvalue=""):
        parts = [
            painted(text.rjust(w) if columns[i].is_number else text.ljust(w), row[i])
            for text, (i, w) in zip(texts, widths.items(), strict=True)
        ]
        lines.append("  ".join(parts).rstrip())
    return lines


def _last(note: str, hidden: Sequence[str], is_cut: bool) -> list[str]:
    """Returns the line below a table: the note, the hidden columns, and if cells are cut.

    Returns [] if there is nothing to say.
    """
    parts = [note] if note else []
    parts += [f"hidden: {', '.join(hidden)}"] if hidden else []
    parts += ["long cells are cut"] if is_cut else []
    way_out = f" ({view().way_out})" if view().way_out else ""
    return [filled("; ".join(parts) + way_out)] if parts else []


def listing(rows: Iterable[tuple[str, str]], column: int = 22) -> str:
    """Formats `name: value` lines with aligned values, which wrap at the terminal's width."""
    width = view().width
    lines: list[str] = []
    for what, value in rows:
        if width is not None and width < 2 * column:
            lines.append(filled(f"{what}: {value}"))
            continue
        texts = value.splitlines() or [""]
        if width is not None:
            texts = [part for text in texts for part in _wrapped(text, width - column)]
        lines.append(f"{what + ':':{column}}{texts[0]}".rstrip())
        lines += [f"{'':{column}}{text}".rstrip() for text in texts[1:]]
    return "\n".join(lines)


def _wrapped(text: str, width: int) -> list[str]:
    """Breaks a text at spaces; a longer word loses its middle."""
    lines = textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False)
    return [cut(line, width) for line in lines] or [""]


def cut(text: str, width: int) -> str:
    """Shortens a text to at most `width` characters by cutting its middle, never a number."""
    if len(text) <= width:
        return text
    head = max(0, (width - 3) // 2)
    tail = len(text) - max(0, width - 3 - head)
    for number_ in _DIGITS.finditer(text):
        if number_.start() < head < number_.end():
            head = number_.start()
        if number_.start() < tail < number_.end():
            tail = number_.end()
    return f"{text[:head]}...{text[tail:]}"


def _cell(value: object) -> str:
    if isinstance(value, Loud):
        return value
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
