"""Updates of an array in place: sums at given rows, which collide in no order but torch's."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch

from stack.ir.node import Node
from stack.ir.updates import updated_rows

Tensor = torch.Tensor
_INDICES = (torch.int32, torch.int64)
Update = Callable[[Sequence[Tensor], Tensor], None]


def row_sums(node: Node) -> Update | None:
    """A `scatter` that adds whole rows of floats, as one call; None for any other.

    Rows are added by atomics, one after another where `torch.use_deterministic_algorithms` asks
    for it. The result may be operand 0 itself.
    """
    rows = updated_rows(node)
    if rows is None or node.attrs["kind"] != "add" or node.dtype.kind != "f":
        return None
    axis, perm = rows

    def run(inputs: Sequence[Tensor], out: Tensor) -> None:
        x, places, updates = inputs
        if out.data_ptr() != x.data_ptr():
            out.copy_(x)
        shape = (*x.shape[:axis], math.prod(places.shape), *x.shape[axis + 1 :])
        added = updates.permute(perm).reshape(shape)
        line = places.reshape(-1)
        out.index_add_(axis, line if line.dtype in _INDICES else line.to(torch.int64), added)

    return run
