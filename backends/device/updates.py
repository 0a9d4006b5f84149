"""Updates of an array in place: sums at given rows, which collide in no order but torch's."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch

from stack.ir.axes import parse_rule
from stack.ir.node import Node

Tensor = torch.Tensor
Update = Callable[[Sequence[Tensor], Tensor], None]


def row_sums(node: Node) -> Update | None:
    """A `scatter` that adds whole rows of floats, as one call; None for any other.

    Rows are added by atomics, one after another where `torch.use_deterministic_algorithms` asks
    for it. The result may be operand 0 itself.
    """
    rule = parse_rule(node.attrs["rule"])
    marked = [i for i, a in enumerate(rule.inputs[0]) if a.mark == "!"]
    if node.attrs["kind"] != "add" or node.dtype.kind != "f" or len(marked) != 1:
        return None
    axis = marked[0]
    target, index, given = ([a.names[0] for a in operand] for operand in rule.inputs)
    rest = [name for i, name in enumerate(target) if i != axis]
    if not set(rest).isdisjoint(index) or set(given) != {*rest, *index}:
        return None
    perm = [given.index(n) for n in (*rest[:axis], *index, *rest[axis:])]

    def run(inputs: Sequence[Tensor], out: Tensor) -> None:
        x, places, updates = inputs
        if out.data_ptr() != x.data_ptr():
            out.copy_(x)
        rows = updates.permute(perm)
        shape = (*x.shape[:axis], math.prod(places.shape), *x.shape[axis + 1 :])
        out.index_add_(axis, places.reshape(-1).to(torch.int64), rows.reshape(shape))

    return run
