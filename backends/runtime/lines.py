"""Source lines of printed kernels. Compilers carry them on to machine code as line numbers."""

from __future__ import annotations

from collections.abc import Sequence

OWN = "-"  # file name for text without a source line: MLIR's name for the text it is given


def place_of(line: str) -> tuple[str, int]:
    """File and number of `block.py:42 Attn.wq`; the number is 0 if there is none."""
    file, _, number = line.split(" ")[0].rpartition(":")
    return (file, int(number)) if number.isdigit() else (line, 0)


def in_full(origins: Sequence[str], whole: Sequence[str]) -> tuple[str, ...]:
    """Returns the source line of each line of a kernel's text.

    If the kernel has a single source line, all text gets that, else the lines in `origins`.

    Args:
        origins: the source line of each line of the text; "" for a statement without one.
        whole: the source lines of the kernel.
    """
    return (whole[0],) * len(origins) if len(whole) == 1 else tuple(origins)


def origin(origins: Sequence[str], number: int) -> str:
    """The source line (`block.py:42`) of a line of the text, counted from 1; "" if it has none."""
    return origins[number - 1].split(" ")[0] if 0 < number <= len(origins) else ""
