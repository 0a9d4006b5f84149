"""Element types of an operator's arrays: the ones that its rule accepts, and valid combinations.

The axes of an operand may be followed by `: i32`, one element type, `: int`, integers, or `: any`.
Other operands are floats. Integers that index an axis have limits:

    n: int < v                an index of axis v, from 0 on
    n: int < v or -1          or that number; instead of a number, the name of an attribute
    n: 1 <= int <= t          a count of elements along axis t, at least one
    n: sum int <= s           counts whose sum is at most s
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stack.errors import RuleError
from stack.ir.types import DTYPES, DType, TensorType

ANY = "any"
KINDS: dict[str, tuple[str, list[DType]]] = {  # each kind: its name in messages, and its types
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
    """Requirements of a rule on the elements of an operand.

    Attributes:
        kind: their type, of `KINDS`.
        text: the requirement as written in the rule.
        least: the smallest allowed value.
        relation: "<" or "<="; "" if there are no limits.
        limit: an axis or a number.
        beside: another allowed value: an attribute or a number; "" for none.
        is_sum: True if the limit also applies to their sum.
    """

    kind: str = "float"
    text: str = ""
    least: int = 0
    relation: str = ""
    limit: str = ""
    beside: str = ""
    is_sum: bool = False

    def refuse(self, values: Any, named: Mapping[str, Any]) -> None:
        """Raises RuleError if an element of `values`, an array of integers of any framework, or
        their sum exceeds the limits.

        `named`: the sizes of axes and the values of attributes that limits may name.
        """
        if not self.relation or 0 in values.shape:
            return
        most = _number(self.limit, named) - (self.relation == "<")
        if self.beside:
            values = values * (values != _number(self.beside, named))  # replaced by 0
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
    """Splits the text of one operand in a rule, as `n: int < v`, into its axes and the requirements
    on its elements.
    """
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
    """Raises RuleError naming the first argument whose element type the rule does not accept."""
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
    """For an error message: lists each argument that would fit the other arguments if it had
    another element type, and these types. Returns "" if no change of a single argument helps.

    `takes`: True if the operator accepts operands of given types.
    """
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
            found.append(
                f"{name!r} has elements of {own}; to match the others it may have {_shown(fits)}"
            )
    return "; or ".join(found)


def _shown(dtypes: Sequence[DType]) -> str:
    """Lists element types; a complete kind is listed by its name."""
    left, shown = list(dtypes), list[str]()
    for words, kind in (KINDS["float"], KINDS["int"]):
        if set(kind) <= set(left):
            shown.append(words)
            left = [d for d in left if d not in kind]
    return ", ".join([*shown, *map(str, left)])
