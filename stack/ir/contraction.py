"""What the axes of a product of two operands are for."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from stack.ir.axes import Rule, parse_rule
from stack.ir.node import Node
from stack.ir.ops import Site
from stack.ir.traits import ends_with_taps
from stack.ir.types import F32

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


class TileExtents(NamedTuple):
    """A product of two blocks: rows and columns of sums, and the last contracted axis of the
    operand that has the rows.

    `group`: neighbours along that axis that lie together in both operands, behind the columns.
    """

    rows: int
    columns: int
    depth: int
    group: int


def tile_extents(dot: Node) -> TileExtents | None:
    """What a `dot` of blocks multiplies; None where it has no rows and columns."""
    rule = parse_rule(dot.attrs["rule"])
    names = contraction(rule)
    if len(names.result) != 2 or names.result[-1] in names.batch:
        return None
    row, column = names.result
    right, left = (names.right, names.left) if column in names.right else (names.left, names.right)
    sizes = rule.sizes([a.shape for a in dot.args])
    depths = [int(sizes[n]) for n in left if n in right and sizes[n] != 1]  # pyright: ignore
    if not depths:
        return None
    is_grouped = right[-1] == left[-1] and right[-2] == column and len(depths) > 1
    group = depths.pop() if is_grouped else 1
    return TileExtents(int(sizes[row]), int(sizes[column]), depths[-1] * group, group)  # pyright: ignore


def is_along_depth(dot: Node) -> bool:
    """Whether both operands of a `dot` end with one contracted axis.

    One of a single element is none: in a tile, an axis of the batch reads so. Neither are taps of
    windows, beside which places lie.
    """
    names = contraction(parse_rule(dot.attrs["rule"]))
    is_shared = names.left[-1:] == names.right[-1:] and names.left[-1] in names.contracted
    return is_shared and dot.args[0].shape[-1] != 1 and not any(map(ends_with_taps, dot.args))


def product_types(dot: Node) -> tuple[str, str, str]:
    """Element types of both operands of a `dot`, and of its sums: of short floats they are wide."""
    is_short = dot.dtype.is_float and dot.dtype.bits == 16
    left, right = (a.dtype.name for a in dot.args)
    return left, right, F32.name if is_short else dot.dtype.name


def check_precision(site: Site) -> None:
    """Raises RuleError for a `precision` that is none."""
    asked = site.attrs.get("precision", PRECISIONS[0])
    if asked not in PRECISIONS:
        raise site.fail(f"precision {asked!r} is not one of {', '.join(PRECISIONS)}")
