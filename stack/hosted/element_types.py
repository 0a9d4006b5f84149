"""Element types of an operator's arrays: what its rule asks for, and which would go together.

The axes of an operand may end in `: i32`, one element type, `: int`, integers, or `: any`; other
operands are of floats.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from stack.errors import RuleError
from stack.ir.types import DTYPES, DType, TensorType

ANY = "any"
KINDS: dict[str, tuple[str, list[DType]]] = {  # in words, and which these are
    "float": ("floats", [d for d in DTYPES.values() if d.is_float]),
    "int": ("integers", [d for d in DTYPES.values() if d.is_integer]),
    ANY: ("any type", list(DTYPES.values())),
    **{name: (name, [dtype]) for name, dtype in DTYPES.items()},
}


def split(side: str) -> tuple[str, str]:
    """The axes of an operand, and what its elements are."""
    axes, _, asked = side.partition(":")
    return axes, asked.strip() or "float"


def check(operands: Sequence[str], asked: Sequence[str], types: Sequence[TensorType]) -> None:
    """Raise RuleError by the name of the argument whose elements are not what its rule asks for."""
    for name, kind, held in zip(operands, asked, types, strict=True):
        words, taken = KINDS[kind]
        if held.dtype not in taken:
            raise RuleError(f"{name!r} has elements of {held.dtype}, its rule asks for {words}")


def others(
    operands: Sequence[str],
    asked: Sequence[str],
    types: Sequence[TensorType],
    takes: Callable[[Sequence[TensorType]], bool],
) -> str:
    """Which argument's elements do not go with the others', and what they may be; "" for none."""
    found: list[str] = []
    for i, (name, kind) in enumerate(zip(operands, asked, strict=True)):
        own = types[i].dtype
        fits = [
            d
            for d in KINDS[kind][1]
            if d.kind in "fiu"
            and d is not own
            and takes([*types[:i], types[i].with_dtype(d), *types[i + 1 :]])
        ]
        if fits:
            found.append(f"{name!r} has elements of {own}, beside the others: {_shown(fits)}")
    return "; or ".join(found)


def _shown(dtypes: Sequence[DType]) -> str:
    """Element types in a list, all of a kind by its name."""
    left, shown = list(dtypes), list[str]()
    for words, kind in (KINDS["float"], KINDS["int"]):
        if set(kind) <= set(left):
            shown.append(words)
            left = [d for d in left if d not in kind]
    return ", ".join([*shown, *map(str, left)])
