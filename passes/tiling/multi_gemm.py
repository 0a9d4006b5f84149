"""Matmuls of one left operand in one kernel, which reads that operand once.

`f(x @ a) * (x @ b)` then neither writes nor reads the two matmuls. Their accumulators share the
registers of a program, so each matmul has a part of a tile. The work for each byte is the same as
in one matmul with all right operands side by side. The cost model in `gpu_products/tile_choice.py`
decides whether that is faster than separate kernels.
"""

from __future__ import annotations

from collections.abc import Sequence

from stack.ir.axes import parse_rule
from stack.ir.node import Block, Node, topological
from stack.ir.traits import contractions, is_contraction
from stack.passes.tiling.frame import CannotTile

MOST = 8  # matmuls: each has at least 16 of 128 columns, the least of tensor cores


def left_of(dot: Node) -> tuple[Node, tuple[int, ...]] | None:
    """Returns the operand with the rows, and the position of each of its axes in the result; -1 for
    the contracted axis. None unless exactly one axis is contracted and one operand has the lanes.
    """
    rule = parse_rule(dot.attrs["rule"])
    inputs = [[a.names[0] for a in operand] for operand in rule.inputs]
    output = [a.names[0] for a in rule.outputs[0]]
    if not output or all(output[-1] in names for names in inputs):
        return None
    side = 0 if output[-1] in inputs[1] else 1
    places = tuple(output.index(n) if n in output else -1 for n in inputs[side])
    return (dot.args[side], places) if places.count(-1) == 1 else None


def why_unfused(dots: Sequence[Node]) -> str:
    """Returns why one kernel cannot compute several matmuls; "" if it can."""
    if len(dots) > MOST:
        return f"{len(dots)} matmuls share the registers of a program, at most {MOST} can"
    first = dots[0]
    for dot in dots[1:]:
        if dot.type != first.type or dot.args[0].dtype != first.args[0].dtype:
            return f"one kernel cannot compute matmuls of types {dot.type} and {first.type}"
        left = left_of(dot)
        if left is None or left != left_of(first):
            return "matmuls with different left operands need separate kernels"
    return ""


def parts_of(body: Block) -> list[tuple[Node, list[Node]]]:
    """Returns the matmuls of a group, each with the results that depend on it alone. Empty if there
    is one matmul, or if a result depends on none or several."""
    dots = contractions(body.nodes)
    parts: dict[Node, list[Node]] = {dot: [] for dot in dots}
    for result in body.results:
        made_of = [n for n in topological([result]) if is_contraction(n)]
        if len(made_of) != 1:
            return []
        parts[made_of[0]].append(result)
    return list(parts.items()) if len(dots) > 1 else []


def products_of(body: Block) -> list[Node]:
    """Returns the matmuls of a group; one program computes them all.

    Raises CannotTile if none can: more than `MOST` matmuls, different left operands or types.
    """
    dots = contractions(body.nodes)
    why = why_unfused(dots) if dots else ""
    if why:
        raise CannotTile(why)
    return dots
