"""Names of values: how they stay unique and parseable."""

from __future__ import annotations

from functools import lru_cache


@lru_cache(maxsize=4096)
def legal_name(hint: str) -> str:
    """The closest name that the IR text allows: letters, digits, `_` and inner dots."""
    if hint.isascii() and hint.isidentifier():
        return hint
    return "".join(c if c.isalnum() or c in "_." else "_" for c in hint).strip(".") or "v"


def unique_name(hint: str, taken: set[str], counts: dict[str, int]) -> str:
    """Returns a name that is not taken, and takes it: `x`, `x_1`, `x_2`, ..."""
    hint = legal_name(hint)
    name = hint
    while name in taken:
        counts[hint] = counts.get(hint, 0) + 1
        name = f"{hint}_{counts[hint]}"
    taken.add(name)
    return name
