"""What the axes of a product of two operands are for."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from stack.ir.axes import Rule
from stack.ir.ops import Site

PRECISIONS = ("tf32",)  # what f32 operands may be rounded to
Names = tuple[str, ...]


class Contraction(NamedTuple):
    """Axis names of a product by place and by role.

    Attributes:
        batch: of both operands and the result, in its order.
        rows: of the left operand and the result.
        columns: of the right operand and the result.
        contracted: of both operands alone, in the order of the left one.
        lone: of one operand alone: summed before anything is multiplied.
    """

    left: Names
    right: Names
    result: Names
    batch: Names
    rows: Names
    columns: Names
    contracted: Names
    lone: Names


@lru_cache(maxsize=1 << 10)
def contraction(rule: Rule) -> Contraction:
    """The roles of the axes of a `dot` with this rule."""
    left, right = (tuple(a.names[0] for a in operand) for operand in rule.inputs)
    made = tuple(a.names[0] for a in rule.outputs[0])

    def pick(names: Names, in_left: bool, in_right: bool, in_result: bool) -> Names:
        wanted = in_left, in_right, in_result
        return tuple(n for n in names if (n in left, n in right, n in made) == wanted)

    lone = pick(left, True, False, False) + pick(right, False, True, False)
    return Contraction(
        left,
        right,
        made,
        pick(made, True, True, True),
        pick(made, True, False, True),
        pick(made, False, True, True),
        pick(left, True, True, False),
        lone,
    )


def check_precision(site: Site) -> None:
    """Raises RuleError for a `precision` that is none."""
    asked = site.attrs.get("precision", PRECISIONS[0])
    if asked not in PRECISIONS:
        raise site.fail(f"precision {asked!r} is not one of {', '.join(PRECISIONS)}")
