"""Example inputs as text: `f32[2,16,64]`, or `i64[2,16]<100` for integers below 100."""

from __future__ import annotations

import re
from typing import NamedTuple

from stack.errors import UsageError
from stack.ir.types import DTYPES, TensorType, tensor

_SPEC = re.compile(r"\s*(\w+)\s*\[([^\]]*)\]\s*(?:<\s*(\d+)\s*)?")
_LONG = re.compile(r"(bf|f|i|u|c)[a-z]+(\d+)")  # names as NumPy spells them: float32
WAY_OUT = "write it as 'f32[2,16,64]', or as 'i64[2,16]<100' for integers from 0 to 99"


class InputSpec(NamedTuple):
    """The type of an example input, and the number that its integers are below; None if the text
    gives none.
    """

    type: TensorType
    below: int | None


def parse_input(text: str) -> InputSpec:
    """Reads the text of an input. Raises UsageError, with the rule and the way out."""
    match = _SPEC.fullmatch(text)
    name, sizes, below = match.groups() if match else ("", "", "")
    why = _why_unreadable(name, sizes) if match else "it is an element type and sizes in brackets"
    if why:
        raise UsageError(f"input {text!r}: {why}; {WAY_OUT}")
    shape = (int(size) for size in sizes.split(",") if size.strip())
    return InputSpec(tensor(name, *shape), int(below) if below else None)


def _why_unreadable(name: str, sizes: str) -> str:
    if name not in DTYPES:
        short = _LONG.sub(r"\1\2", name)
        return f"{name} is {short}" if short in DTYPES else f"types are {', '.join(DTYPES)}"
    for size in filter(None, map(str.strip, sizes.split(","))):
        if re.fullmatch(r"\d+(\s*[x ]\s*\d+)+", size):
            return "commas are between sizes"
        if not size.isdecimal():
            return f"size {size!r} is no number: give one, and make sizes symbolic by --dynamic"
    return ""
