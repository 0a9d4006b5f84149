"""Elements of an operator's arrays: what its rule asks for, and which types would go together.

The axes of an operand may end in `: i32`, one element type, `: int`, integers, or `: any`; other
operands are of floats. Integers that stand for places of an axis have limits:

    n: int < v                an index of axis v, from 0 on
    n: int < v or -1          or that number; instead of a number, the name of an attribute
    n: 1 <= int <= t          a count of what lies along axis t, of one at least
    n: sum int <= s           counts that are no more than s together
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stack.errors import RuleError
from stack.ir.types import DTYPES, DType, TensorType

ANY = "any"
KINDS: dict[str, tuple[str, list[DType]]] = {  # in words, and which these are
    "float": ("floats", [d for d in DTYPES.values() if d.is_float]),
    "int": ("integers", [d for d in DTYPES.values() if d.is_integer]),
    ANY: ("any type", list(DTYPES.values())),
    **{name: (name, [dtype]) for name, dtype in DTYPES.items()},
}


_ASKED = re.compile(
    r"((?P<least>-?\d+) *<= *)?(?P<sum>sum +)?(?P<kind>\w+)"
    r"( *(?P<relation><=?) *(?P<limit>\w+)( +or +(?P<beside>-?\w+))?)?"
)


@dataclass(frozen=True)
class Elements:
    """What a rule asks of the elements of an operand.

    Attributes:
        kind: their type, of `KINDS`.
        text: all that is asked, as the rule says it.
        least: the smallest one.
        relation: "<" or "<="; "" where there are no limits.
        limit: an axis or a number.
        beside: a value that is taken too: an attribute or a number; "" for none.
        is_sum: whether the limit is that of their sum, too.
    """

    kind: str = "float"
    text: str = ""
    least: int = 0
    relation: str = ""
    limit: str = ""
    beside: str = ""
    is_sum: bool = False

    def refuse(self, values: Any, named: Mapping[str, Any]) -> None:
        """Raise RuleError where values of an array of any framework are past the limits.

        `named`: sizes of axes, and attributes.
        """
        if not self.relation or 0 in values.shape:
            return
        most = _number(self.limit, named) - (self.relation == "<")
        if self.beside:
            values = values * (values != _number(self.beside, named))  # 0 in its place
        found = [int(values.min()), int(values.max())]
        if self.is_sum:
            found.append(int(values.sum()))
        wrong = next((n for n in found if not self.least <= n <= most), None)
        if wrong is not None:
            sizes = [f"{n} is {named[n]}" for n in (self.limit, self.beside) if n in named]
            where = f", where {' and '.join(sizes)}" if sizes else ""
            told = "adds up to" if wrong not in found[:2] else "has"
            raise RuleError(f"{told} {wrong}, its rule asks for {self.text}{where}")


def _number(text: str, named: Mapping[str, Any]) -> int:
    return int(named.get(text, text))


def split(side: str) -> tuple[str, Elements]:
    """The axes of an operand, and what its elements are."""
    axes, _, asked = side.partition(":")
    asked = asked.strip()
    found = _ASKED.fullmatch(asked)
    if found is None:
        return axes, Elements(asked or "float", asked)
    made = Elements(
        found["kind"],
        asked,
        int(found["least"] or 0),
        found["relation"] or "",
        found["limit"] or "",
        found["beside"] or "",
        bool(found["sum"]),
    )
    return axes, made


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
