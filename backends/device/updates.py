"""Updates of rows of an array, in place if the array is not used afterwards."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch

from stack.ir.node import Node
from stack.ir.updates import updated_rows

Tensor = torch.Tensor


class Update(NamedTuple):
    """A torch call, by name. `run` takes the operands and the result, which may be the first
    operand."""

    name: str
    run: Callable[[Sequence[Tensor], Tensor], None]


def row_update(node: Node) -> Update | None:
    """Returns one torch call for a `scatter` of whole rows; None if there is none.

    Supported are sums of floats, and setting a single row. In other scatters, rows could collide
    and the result would depend on their order. Sums use atomics, or are sequential if
    `torch.use_deterministic_algorithms` is set. An update that is to be dropped adds zeros.
    """
    rows = updated_rows(node)
    drops = bool(node.attrs.get("drop"))
    if rows is None or (drops and (node.attrs["kind"] != "add" or not node.tensor.size)):
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
        if drops:
            count = x.shape[axis]
            inside = (line >= 0) & (line < count)
            added = added.where(inside.reshape(-1, *(1,) * (added.ndim - axis - 1)), 0)
            line = line % count  # spread over all rows: atomics on one row wait for each other
        write(out, axis, line if line.dtype in indices else line.to(torch.int64), added)

    return Update(f"torch.{name}", run)
