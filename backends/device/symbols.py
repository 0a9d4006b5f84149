"""The name of a kernel in its machine code, which profilers show.

Equal kernels are compiled once, whatever they are called: all under one long name, in whose place
the machine code gets its own when it is loaded.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

ENTRY = "stack_kernel".ljust(96, "_")  # what all are compiled as
_OTHER = re.compile(r"\W+", re.ASCII)


def symbol_of(name: str, lines: Sequence[str]) -> str:
    """`stack_dot_add__model_py_42` of the kernel `dot_add` made of `model.py:42`."""
    where = f"__{lines[0]}" if lines else ""
    return _OTHER.sub("_", f"stack_{name}{where}")[: len(ENTRY)]


def named(cubin: bytes, symbol: str) -> bytes:
    """Machine code whose kernel has that name; a shorter name ends early in its string table."""
    return cubin.replace(ENTRY.encode(), symbol.encode().ljust(len(ENTRY), b"\0"))
