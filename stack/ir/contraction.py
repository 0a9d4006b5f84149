"""The roles of the axes of a matmul."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from stack.ir.axes import Rule, parse_rule
from stack.ir.node import Node
from stack.ir.ops import Site
from stack.ir.traits import ends_with_taps
from stack.ir.types import F32

ROUNDED = "tf32_rounded"  # operands are TF32 values already
PRECISIONS = ("tf32", ROUNDED)  # types to which f32 operands may be rounded
Names = tuple[str, ...]


class Contraction(NamedTuple):
    """Axis names of a matmul, by operand and by role.

    Attributes:
        batch: in both operands and the result, in the result's order.
        rows: in the left operand and the result.
        columns: in the right operand and the result.
        contracted: in both operands only, in the left operand's order.
        lone: in one operand only; summed before the multiplication.
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
    """Sorts the axes of a matmul (op `dot`) with this axis rule by role: batch, rows, columns,
    contracted, or in one operand only.
    """
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
    """The sizes of a matmul of two tiles: rows and columns of the result, and the innermost
    contracted axis of the operand with the rows.

    `group`: number of neighbours along the contracted axis that are contiguous in both operands, as
    the last axis behind the columns.
    """

    rows: int
    columns: int
    depth: int
    group: int


def tile_extents(dot: Node) -> TileExtents | None:
    """The sizes of a `dot` of tiles; None if it has no row and column axes."""
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
    """True if the last axis of both operands of a `dot` is the same contracted axis, so that both
    are contiguous along it.

    Returns False if that axis has one element: in a tile, a batch axis has this form. Returns False
    also if an operand ends with window taps, whose neighbours in memory are window positions.
    """
    names = contraction(parse_rule(dot.attrs["rule"]))
    is_shared = names.left[-1:] == names.right[-1:] and names.left[-1] in names.contracted
    return is_shared and dot.args[0].shape[-1] != 1 and not any(map(ends_with_taps, dot.args))


def product_types(dot: Node) -> tuple[str, str, str]:
    """Element types of both operands of a `dot` and of its accumulator: f32 for 16-bit floats."""
    is_short = dot.dtype.is_float and dot.dtype.bits == 16
    left, right = (a.dtype.name for a in dot.args)
    return left, right, F32.name if is_short else dot.dtype.name


def check_precision(site: Site) -> None:
    """Raises RuleError for an unknown `precision`."""
    asked = site.attrs.get("precision", PRECISIONS[0])
    if asked not in PRECISIONS:
        raise site.fail(f"precision {asked!r} is not one of {', '.join(PRECISIONS)}")
