"""The contracted axes of a dot, where neighbours in memory count as one.

    dot(%q, %k) {rule="m d e, n d e -> m n"}      %q: bf16[2048, 64, 2], %k: bf16[2048, 64, 2]

contracts one axis of 128 elements: no op treats d and e separately, so pass `coalesce` merges them.
"""

from __future__ import annotations

from math import prod

from stack.ir.axes import parse_rule
from stack.ir.node import Node
from stack.ir.traits import axis_order, converts, is_alias, is_input
from stack.passes.tiling.frame import static


def contracted_sizes(dot: Node) -> list[int]:
    """Returns the sizes of the contracted axes of a dot, those of neighbours multiplied."""
    rule = parse_rule(dot.attrs["rule"])
    sizes = rule.sizes([a.shape for a in dot.args])
    sides = [[axis.names for axis in operand] for operand in rule.inputs]
    runs: list[list[str]] = []
    for name in rule.reduced:
        last = (runs[-1][-1], name) if runs else ("", name)
        if all(_are_neighbours(*side, *last) for side in zip(dot.args, sides, strict=True)):
            runs[-1].append(name)
        else:
            runs.append([name])
    return [prod(static(sizes[name]) for name in run) for run in runs]


def _are_neighbours(value: Node, names: list[tuple[str, ...]], first: str, second: str) -> bool:
    """True if the axis `second` of a dot's operand follows the axis `first`, also in the memory
    that the operand is loaded from."""
    if (first,) not in names:
        return False
    pair = names.index((first,)), names.index((second,))
    while pair[0] + 1 == pair[1] and not is_input(value):
        order = axis_order(value)
        if order is not None:
            pair = order[pair[0]], order[pair[1]]
        elif is_alias(value):
            axes, old = ([i for i, n in enumerate(v.shape) if n != 1] for v in (value, *value.args))
            if [value.shape[i] for i in axes] != [value.args[0].shape[i] for i in old]:
                return False  # it splits or merges axes
            if not {*pair} <= {*axes}:
                return False
            pair = old[axes.index(pair[0])], old[axes.index(pair[1])]
        elif not converts(value):
            return False
        (value,) = value.args
    return pair[0] + 1 == pair[1]
