"""Fits the columns of a table into a width: hides the least important ones and narrows others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

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
