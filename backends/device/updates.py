"""Updates of rows of an array, in place where the array ends there."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch

from stack.ir.node import Node
from stack.ir.updates import updated_rows

Tensor = torch.Tensor


class Update(NamedTuple):
    """A call of torch's, by name. `run` gets the operands, and the result, which may be the first
    of them."""

    name: str
    run: Callable[[Sequence[Tensor], Tensor], None]


def row_update(node: Node) -> Update | None:
    """A `scatter` of whole rows as one call: of sums of floats, or of one row that is set; None for
    any other, whose rows might collide in an order that counts.

    Rows are added by atomics, one after another where `torch.use_deterministic_algorithms` asks
    for it.
    """
    rows = updated_rows(node)
    if rows is None or node.attrs.get("drop"):
        return None
    if node.attrs["kind"] == "add" and node.dtype.kind == "f":
        name = "index_add"
    elif node.attrs["kind"] == "set" and node.args[1].tensor.size == 1:
        name = "index_copy"
    else:
        return None
    axis, perm = rows
    write = getattr(Tensor, f"{name}_")
    indices = (torch.int32, torch.int64) if name == "index_add" else (torch.int64,)

    def run(inputs: Sequence[Tensor], out: Tensor) -> None:
        x, places, updates = inputs
        if out.data_ptr() != x.data_ptr():
            out.copy_(x)
        shape = (*x.shape[:axis], math.prod(places.shape), *x.shape[axis + 1 :])
        added = updates.permute(perm).reshape(shape)
        line = places.reshape(-1)
        write(out, axis, line if line.dtype in indices else line.to(torch.int64), added)

    return Update(f"torch.{name}", run)
