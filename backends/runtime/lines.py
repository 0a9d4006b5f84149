"""Source lines in the text that compilers take, and in what they print of machine code."""

from __future__ import annotations

NOWHERE = "; no source line"


def place_of(line: str) -> tuple[str, int]:
    """File and number of `block.py:42 Attn.wq`; the number is 0 where there is none."""
    file, _, number = line.split(" ")[0].rpartition(":")
    return (file, int(number)) if number.isdigit() else (line, 0)


def quoted(text: str) -> str:
    """A file's name between quotes."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
