"""Puts source lines into Triton's stages, in place of line numbers of the printed module."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ..runtime.names import OWN, origin, place_of

_MODULE = r"<stack triton [0-9a-f]+>"
_PLACE = re.compile(rf"{_MODULE}(\"?):(\d+):\d+")
_LLVM = re.compile(r"(!DILocation\(line: (\d+), .*)")


def with_lines(text: str, lines: Sequence[str]) -> str:
    """Returns a stage of Triton as text, with the user's source lines.

    They replace line numbers of the printed module. `lines`: the source line of each line of that
    module; "" for none.
    """
    text = _PLACE.sub(lambda m: "{}{}:{}:0".format(*_file(lines, int(m[2]), m[1])), text)
    return _LLVM.sub(lambda m: f"{m[1]} ; {origin(lines, int(m[2])) or 'no source line'}", text)


def line_of(lines: Sequence[str], file: str, number: int) -> str:
    """The source line of a line in a file that Triton names; "" for any file but the module."""
    return origin(lines, number) if re.fullmatch(_MODULE, file) else ""


def with_functions(text: str, lines: Sequence[str]) -> tuple[str, ...]:
    """Source lines of a module; a function with a single calling line gets that line.

    Inlined machine code refers to the function's lines, because Triton drops the call site.
    """
    found, held = list(lines), text.splitlines()
    starts = [i for i, line in enumerate(held) if line.startswith("def ")]
    for start in reversed(starts[:-1]):  # a caller is defined after its callees
        name = held[start].removeprefix("def ").partition("(")[0]
        after = range(start + 1, len(held))
        callers = {found[i] for i in after if re.search(rf"\b{name}\b", held[i])}
        end = held.index("", start)
        if len(callers) == 1:
            found[start:end] = [*callers] * (end - start)
    return tuple(found)


def _file(lines: Sequence[str], number: int, quote: str) -> tuple[str, str, int]:
    file, at = place_of(origin(lines, number) or f"{OWN}:{number}")
    return file, quote, at
