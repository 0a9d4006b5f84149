"""From percent format to a notebook: the same bytes each time, and no outputs."""

from __future__ import annotations

import json
import re
from typing import Any

from stack.demos.course.lesson import Lesson

_CELL = re.compile(r"^# %%( \[markdown\])?.*\n", re.MULTILINE)


def cells(text: str) -> list[tuple[str, str]]:
    """Splits a script in percent format into cells: kind ("markdown" or "code") and text."""
    heads = list(_CELL.finditer(text))
    ends = [h.start() for h in heads[1:]] + [len(text)]
    found: list[tuple[str, str]] = []
    for head, end in zip(heads, ends, strict=True):
        body = text[head.end() : end].strip("\n")
        if head[1]:
            body = "\n".join(line.removeprefix("#").removeprefix(" ") for line in body.split("\n"))
        found.append(("markdown" if head[1] else "code", body))
    return found


def notebook(lesson: Lesson) -> str:
    """The lesson as a notebook, its exercise in the last cells."""
    found = cells(lesson.text)
    graded = f"!python -m stack.demos.course grade {lesson.name}"
    found += [("markdown", lesson.task), ("code", lesson.begin), ("code", graded)]
    made = [_cell(i, kind, text) for i, (kind, text) in enumerate(found)]
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    document = {
        "cells": made,
        "metadata": {"kernelspec": kernel, "language_info": {"name": "python"}},
        "nbformat": 4,
        "nbformat_minor": 5,
    }
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"


def _cell(number: int, kind: str, text: str) -> dict[str, Any]:
    lines = text.split("\n")
    source = [f"{line}\n" for line in lines[:-1]] + lines[-1:]
    made: dict[str, Any] = {"cell_type": kind, "id": f"cell-{number}", "metadata": {}}
    if kind == "code":
        made |= {"execution_count": None, "outputs": []}
    return made | {"source": source}
