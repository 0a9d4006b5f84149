"""Diff two stages as text. This suffices, since value names survive passes."""

from __future__ import annotations

import difflib
import re

from stack.explore.saved_run import SavedRun

_FROM = re.compile(r' from "(?:[^"\\]|\\.)*"(?:, "(?:[^"\\]|\\.)*")*')


def without_lines(text: str) -> str:
    """Removes the source lines of nodes from IR text."""
    return _FROM.sub("", text)


def diff_texts(before: str, after: str, names: tuple[str, str], context: int = 2) -> str:
    """Returns a unified diff, or "" if the texts are the same.

    Nodes that only moved are marked as moved, not as removed and added.
    """
    old, new = before.splitlines(), after.splitlines()
    lines = list(difflib.unified_diff(old, new, *names, lineterm="", n=context))
    gone = {line[1:].strip() for line in lines[2:] if line.startswith("-")}
    come = {line[1:].strip() for line in lines[2:] if line.startswith("+")}
    moved = {text for text in gone & come if text}
    shown: list[str] = []
    for i, line in enumerate(lines):
        if i >= 2 and line[:1] in "+-" and line[1:].strip() in moved:
            if line.startswith("+"):
                shown.append(f"~{line[1:]}")
            continue
        shown.append(line)
    if all(line[:1] not in ("+", "-", "~") for line in shown[2:]):
        return ""
    return "\n".join(shown) + "\n"


def diff_runs(a: SavedRun, b: SavedRun) -> list[tuple[str, str]]:
    """Compares the stage texts of two runs by stage name; returns (stage, outcome) pairs.

    The outcome is "same", "differs", "only in A" or "only in B".
    """
    rows: list[tuple[str, str]] = []
    for name in list(dict.fromkeys((*a.stages, *b.stages))):
        if name not in b.stages:
            rows.append((name, f"only in {a.folder}"))
        elif name not in a.stages:
            rows.append((name, f"only in {b.folder}"))
        else:
            same = without_lines(a.text(name)) == without_lines(b.text(name))
            rows.append((name, "same" if same else "differs"))
    return rows


def summary(text: str) -> str:
    """Counts the changes of a diff: `3 added, 5 removed, 1 moved`."""
    counts = {"+": 0, "-": 0, "~": 0}
    for line in text.splitlines()[2:]:
        if line[:1] in counts:
            counts[line[0]] += 1
    return f"{counts['+']} added, {counts['-']} removed, {counts['~']} moved"
