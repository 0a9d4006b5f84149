"""Differences of texts as HTML: changed lines are coloured, and their changed words are marked."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from difflib import SequenceMatcher

from stack.report.lines import Index, defined, joined_numbers
from stack.report.markup import Html, escaped, joined, tag

_WORD = re.compile(r"\s+|[%\w.]+|.")
_KINDS = {"+": "come", "-": "gone", "~": "moved", "@": "at"}
MOST = 60  # lines of a block in which similar lines are looked for
LIKE = 0.4  # share of equal words from which two lines are a change of one line


def marked(before: str, after: str) -> Html:
    """Marks the words that were added or changed from the text `before` to `after`, line by line.

    Marks none if `before` is empty.
    """
    if not before:
        return escaped(after)
    old, new = before.split("\n"), after.split("\n")
    rows: list[Html] = []
    matcher = SequenceMatcher(None, old, new, autojunk=False)
    for what, start, stop, first, last in matcher.get_opcodes():
        gone = old[start:stop]
        for i, line in enumerate(new[first:last]):
            if what == "equal":
                rows.append(escaped(line))
                continue
            same = _same_line(line, gone) or (gone[i] if i < len(gone) else "")
            rows.append(marked_pair(same, line)[1])
    return joined(rows, "\n")


def _same_line(line: str, others: Sequence[str]) -> str:
    """Returns the first of some lines that defines the same value; "" if none does."""
    value = defined(line)
    return next((o for o in others if value and defined(o) == value), "")


def marked_pair(before: str, after: str) -> tuple[Html, Html]:
    """Marks the words of `before` that are gone in `after`, and those of `after` that are new."""
    old, new = _WORD.findall(before), _WORD.findall(after)
    gone: list[object] = []
    come: list[object] = []
    matcher = SequenceMatcher(None, old, new, autojunk=False)
    for what, start, stop, first, last in matcher.get_opcodes():
        for parts, text, name in (
            (gone, "".join(old[start:stop]), "del"),
            (come, "".join(new[first:last]), "ins"),
        ):
            if text:
                parts.append(text if what == "equal" or not text.strip() else tag(name, text))
    return joined(gone), joined(come)


def diff_lines(text: str, index: Index) -> Html:
    """Returns the lines of a diff as HTML: coloured, linked to values, changed words marked.

    The signs + and - at their start repeat the meaning of the colours.
    """
    rows: list[Html] = []
    lines = [n for n in text.rstrip("\n").split("\n") if not n.startswith(("---", "+++"))]
    start = 0
    while start < len(lines):
        end = start
        while end < len(lines) and lines[end][:1] in ("-", "+"):
            end += 1
        if end == start:
            rows.append(_row(lines[start], escaped(lines[start]), index))
            start += 1
            continue
        block = lines[start:end]
        shown = _changed(block)
        rows += [_row(line, shown.get(i, escaped(line)), index) for i, line in enumerate(block)]
        start = end
    return Html("\n".join(rows))


def _changed(block: Sequence[str]) -> Mapping[int, Html]:
    """Marks the words of those lines of a block that are a change of one line.

    They define the same value; or they define none, and have most of their words in common.
    """
    found: dict[int, Html] = {}
    old = [i for i, line in enumerate(block) if line.startswith("-")]
    new = [i for i, line in enumerate(block) if line.startswith("+")]
    by_value = {defined(block[i][1:]): i for i in new}
    for i in old:
        value = defined(block[i][1:])
        match = by_value.get(value)
        if not value and len(block) <= MOST:
            left = (k for k in new if k not in found and not defined(block[k][1:]))
            match = next((k for k in left if _are_alike(block[i], block[k])), None)
        if match is not None and match not in found:
            gone, come = marked_pair(block[i][1:], block[match][1:])
            found[i], found[match] = joined(["-", gone]), joined(["+", come])
    return found


def _are_alike(before: str, after: str) -> bool:
    old, new = _WORD.findall(before[1:]), _WORD.findall(after[1:])
    matcher = SequenceMatcher(None, old, new, autojunk=False)
    return matcher.real_quick_ratio() >= LIKE and matcher.ratio() >= LIKE


def _row(line: str, shown: Html, index: Index) -> Html:
    kind = _KINDS.get(line[:1], "")
    name = defined(line[1:])
    if not name:
        return tag("i", shown, class_=kind or None)
    kernels = joined_numbers(index.by_value.get(name, []))
    return tag("i", shown, class_=f"pick {kind}".strip(), data_n=name, data_k=kernels)
