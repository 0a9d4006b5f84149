"""Source lines of printed kernels, which compilers carry on to machine code by number."""

from __future__ import annotations

from collections.abc import Sequence

OWN = "-"  # the file of what has no source line, which is how MLIR calls the text that it is given


def place_of(line: str) -> tuple[str, int]:
    """File and number of `block.py:42 Attn.wq`; the number is 0 where there is none."""
    file, _, number = line.split(" ")[0].rpartition(":")
    return (file, int(number)) if number.isdigit() else (line, 0)


def in_full(origins: Sequence[str], whole: Sequence[str]) -> tuple[str, ...]:
    """Source lines of a kernel's text: all of it is of the kernel's line where that is one alone.

    Args:
        origins: of each line of the text; "" where a statement has none.
        whole: those of the kernel.
    """
    return (whole[0],) * len(origins) if len(whole) == 1 else tuple(origins)


def origin(origins: Sequence[str], number: int) -> str:
    """`block.py:42` of a line of the text, from 1; "" where it has none."""
    return origins[number - 1].split(" ")[0] if 0 < number <= len(origins) else ""
