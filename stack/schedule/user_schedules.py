"""Schedules written by hand: `NAME: SCHEDULE`, several of them, or a file of such lines.

NAME is a value's name, with or without its %, or the name of a group. * and ? match any letters; a
pattern applies to all groups whose domain has the axes of the schedule.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Any, cast

from stack.errors import UsageError
from stack.ir.untrusted_files import read_text
from stack.schedule.policy import is_list
from stack.schedule.record import Schedule, unreadable

PART = "_part"  # suffix of a value's name: its partial results
SHOWN = 80  # characters of a text that cannot be read
REDUCED = ("k", "r")  # names of reduced axes: of matmuls and streams, and of rows


def named_schedules(specs: Sequence[str]) -> dict[str, str]:
    """Texts of schedules by name.

    Args:
        specs: each `NAME: SCHEDULE`, several separated by semicolons, or the path of a file with
            one per line. Text after a # is ignored. A list of steps may span semicolons and lines.

    Raises:
        UsageError: names the text that cannot be parsed, or the file that cannot be read.
    """
    found: dict[str, str] = {}
    for spec in specs:
        lines = (line.partition("#")[0].strip() for line in re.split("[;\n]", _text_of(spec)))
        last = ""
        for line in filter(None, lines):
            name, colon, schedule = line.partition(":")
            if not colon and last and (is_list(line) or is_list(found[last])):
                found[last] += f"; {line}"
                continue
            if not colon:
                raise UsageError(
                    f"schedule {line[:SHOWN]!r}: write 'NAME: m=128 n=64', a list of steps as"
                    " 'NAME: split r 1024; vectorize r.1; bind i grid', or name a file that exists"
                )
            last = name.strip().removeprefix("%")
            if not schedule.strip():
                raise unreadable(line, "")
            if not is_list(schedule):
                Schedule.parse(schedule.strip())
            found[last] = schedule.strip()
    return found


def schedules_in(options: Mapping[str, Any]) -> dict[str, str]:
    """Parses the option `schedule`: one text, several, or texts by name."""
    asked = options.get("schedule") or ()
    if isinstance(asked, Mapping):
        given = cast("Mapping[str, str]", asked)
        asked = [f"{name}: {text}" for name, text in given.items()]
    return named_schedules([asked] if isinstance(asked, str) else asked)


def _text_of(spec: str) -> str:
    """Returns the text of a file, or the text itself that is given instead of one."""
    if ":" in spec or not os.path.isfile(spec):  # a long list is no file name
        return spec
    try:
        return read_text(spec).removeprefix("\ufeff")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{spec} cannot be read as schedules: {error}") from error


def part_of(given: Mapping[str, str], name: str, axis: str) -> int | None:
    """The number of elements of a reduced axis that each program gets in the schedule that a user
    gave for `name`; 0 if each program gets the whole axis.

    None if no schedule is given for `name`.
    """
    if name not in given:
        return None
    if is_list(given[name]):
        return 0
    splits = Schedule.parse(given[name]).of(axis)
    return next((s.block for s in splits if s.binding == "grid"), 0)


def of_part(given: Schedule) -> Schedule:
    """Returns the schedule of the kernel that computes one partial result: `given` without the
    splits that distribute reduced axes among programs.
    """
    splits = (s for s in given.splits if s.axis not in REDUCED or s.binding != "grid")
    return replace(given, splits=tuple(splits))


def is_pattern(name: str) -> bool:
    """True if a name contains a wildcard (`*`, `?`, `[`), so that it may match several groups."""
    return bool(set("*?[") & set(name))


def given_for(given: Mapping[str, str], *names: str) -> tuple[str, str]:
    """Returns the name or pattern in `given` that matches a group with these names, and its
    schedule; two empty texts if none matches. Exact names come before patterns.
    """
    for name in filter(None, names):
        if name in given:
            return name, given[name]
    for pattern, text in given.items():
        if is_pattern(pattern) and any(fnmatchcase(n, pattern) for n in names if n):
            return pattern, text
    return "", ""
