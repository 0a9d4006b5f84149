"""A select of a tile as a branch: its condition is computed in the steps where it can matter.

Comparisons of places, and conditions that are one for the whole tile, tell without looking at the
elements whether a condition can hold on a tile at all. In a loop over tiles most steps of a mask
hide nothing: those pass the branch by.
"""

from __future__ import annotations

from stack.ir import ops
from stack.ir.axes import Index
from stack.ir.builder import constant
from stack.ir.dim import substitute
from stack.ir.node import Node, topological
from stack.ir.traits import connective, is_elementwise, is_formula, is_input, negates, reads_by_data
from stack.passes.blocking.frame import Axis, NamedTile
from stack.passes.blocking.limits import corners
from stack.passes.blocking.reduce import unscaled
from stack.passes.blocking.values import BlockValues
from stack.passes.positions.visible import compared

COSTLY = ("reduction", "contraction")  # kinds that are not computed again in a branch


def can_hold(
    frame: BlockValues, node: Node, index: Index, positive: bool = True
) -> NamedTile | None:
    """A scalar that is False only where the condition holds (or fails) nowhere on the tile.

    None where that is not known.
    """
    if ops.is_view(node):
        return can_hold(frame, node.args[0], ops.pull(node, index)[0], positive)
    if negates(node):
        return can_hold(frame, node.args[0], index, not positive)
    if _is_one(frame, node, index):
        value = frame.value(node, index)
        return value if positive else frame.apply("not", [value])
    if connective(node):
        parts = [can_hold(frame, a, index, positive) for a in node.args]
        known = [p for p in parts if p is not None]
        needs_all = (connective(node) > 0) == positive
        if not known or (not needs_all and len(known) < len(parts)):
            return None
        return frame.apply("and" if needs_all else "or", known) if len(known) > 1 else known[0]
    if ops.algebra_of(node).is_order:
        return _compared(frame, node, index, positive)
    return None


def _compared(frame: BlockValues, node: Node, index: Index, positive: bool) -> NamedTile | None:
    """A comparison of places, at the corner of the tile where it holds first."""
    found = compared(node, index, positive)
    ends = corners(frame, found[0]) if found is not None else None
    if found is None or ends is None:
        return None
    return frame.apply("gt" if found[1] else "ge", [frame.number(ends[1]), frame.int(0)])


def _is_one(frame: BlockValues, node: Node, index: Index) -> bool:
    """Whether a node has one value on the whole tile, which costs little to compute."""
    if ops.is_view(node):
        return _is_one(frame, node.args[0], ops.pull(node, index)[0])
    if is_input(node) or is_formula(node):
        return not any(frame.tile_axes(d) for d in index)
    return is_elementwise(node) and all(
        _is_one(frame, a, index if a.tensor.rank else ()) for a in node.args
    )


def _is_costly(node: Node) -> bool:
    return ops.lookup(node.op).kind in COSTLY or reads_by_data(node)


def branched(
    frame: BlockValues, select: Node, shown: int, index: Index, axis: Axis
) -> NamedTile | None:
    """A select that gives its operand `shown` and, where it hides, a number: 0 or -inf.

    `axis` is the one that the loop walks along. None where nothing tells when to leave it out.
    """
    condition, fill = select.args[0], select.args[3 - shown]
    if any(_is_costly(n) for n in topological([condition])):
        return None
    hides = can_hold(frame, condition, index, shown == 2)
    axes = frame.union([NamedTile(select, tuple(frame.tile_axes(d))) for d in index])
    if hides is None or len(axes) < 2:
        return None
    value = frame.value(select.args[shown], index)
    # a positive factor may wait: it leaves both numbers what they are
    base, scale = unscaled(frame.b, value.node)

    def hide(iteration: Node, carried: list[NamedTile]) -> list[NamedTile]:
        # places that depend on the iteration are computed in the branch
        start = frame.b.add(axis.start, frame.b.mul(iteration, axis.block))
        again = frame.axis(axis.name, axis.extent, axis.block, start)
        moved = tuple(substitute(d, {axis.name: again.place}) for d in index)
        test = frame.value(condition, moved)
        same = tuple(axis.name if n == again.name else n for n in test.axes)
        parts = [carried[0], frame.value(fill, index)]
        made = frame.apply(
            "select", [NamedTile(test.node, same), *(parts if shown == 1 else parts[::-1])]
        )
        return [NamedTile(frame.spread(made, axes), axes)]

    start = NamedTile(frame.spread(NamedTile(base, value.axes), axes), axes)
    iterations = (frame.int(0).node, frame.cast(hides, frame.integer).node)
    (made,) = frame.steps(1, [start], hide, "iteration", iterations, ["shown"], kind="branch")
    if scale == 1:
        return made
    return frame.apply("mul", [made, NamedTile(constant(scale, made.dtype))])
