"""Source lines in what Triton makes of a kernel: in place of lines of the printed module."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ..runtime.lines import OWN, origin, place_of

_MODULE = r"<stack triton [0-9a-f]+>"
_PLACE = re.compile(rf"{_MODULE}(\"?):(\d+):\d+")
_LLVM = re.compile(r"(!DILocation\(line: (\d+), .*)")


def with_lines(text: str, lines: Sequence[str]) -> str:
    """A stage of Triton's with the source line of each line of the module, "" where it has none."""
    text = _PLACE.sub(lambda m: "{}{}:{}:0".format(*_file(lines, int(m[2]), m[1])), text)
    return _LLVM.sub(lambda m: f"{m[1]} ; {origin(lines, int(m[2])) or 'no source line'}", text)


def _file(lines: Sequence[str], number: int, quote: str) -> tuple[str, str, int]:
    file, at = place_of(origin(lines, number) or f"{OWN}:{number}")
    return file, quote, at
