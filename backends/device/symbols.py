"""The symbol of a kernel in its machine code, which profilers show.

Equal kernels are compiled once, whatever their names, and always under the same long symbol. When
the machine code is loaded, the kernel's own symbol replaces it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

ENTRY = "stack_kernel".ljust(96, "_")  # the symbol that every kernel is compiled under
_OTHER = re.compile(r"\W+", re.ASCII)


def symbol_of(name: str, lines: Sequence[str]) -> str:
    """`stack_dot_add__model_py_42`, for the kernel `dot_add` from `model.py:42`."""
    where = f"__{lines[0]}" if lines else ""
    return _OTHER.sub("_", f"stack_{name}{where}")[: len(ENTRY)]


def named(cubin: bytes, symbol: str) -> bytes:
    """The machine code with its symbol replaced; a shorter one is padded with zero bytes."""
    return cubin.replace(ENTRY.encode(), symbol.encode().ljust(len(ENTRY), b"\0"))
