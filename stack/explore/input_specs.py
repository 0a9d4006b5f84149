"""Checks the text of inputs of a command, `f32[2,16,64]`, before a framework is imported."""

from __future__ import annotations

import re
from collections.abc import Iterable

from stack.errors import UsageError
from stack.ir.types import DTYPES

_SPEC = re.compile(r"\s*(\w+)\s*\[([^\]]*)\]\s*(?:<\s*\d+\s*)?")
_LONG = re.compile(r"(bf|f|i|u|c)[a-z]+(\d+)")  # names as NumPy spells them: float32
WAY_OUT = "write it as 'f32[2,16,64]', or as 'i64[2,16]<100' for integers from 0 to 99"


def check_inputs(specs: Iterable[str]) -> None:
    """Raises UsageError, with the rule and the way out, for an input that cannot be read."""
    for spec in specs:
        why = _why_unreadable(spec)
        if why:
            raise UsageError(f"input {spec!r}: {why}; {WAY_OUT}")


def _why_unreadable(spec: str) -> str:
    match = _SPEC.fullmatch(spec)
    if match is None:
        return "it is an element type and sizes in brackets"
    name, sizes = match.groups()
    if name not in DTYPES:
        short = _LONG.sub(r"\1\2", name)
        return f"{name} is {short}" if short in DTYPES else f"types are {', '.join(DTYPES)}"
    for size in filter(None, map(str.strip, sizes.split(","))):
        if re.fullmatch(r"\d+(\s*[x ]\s*\d+)+", size):
            return "commas are between sizes"
        if not size.isdecimal():
            return f"size {size!r} is no number: give one, and make sizes symbolic by --dynamic"
    return ""
