"""Ragged matmuls in torch: by its grouped GEMM if that supports the operands."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from stack.ir.array_space import einsum_text
from stack.ir.axes import parse_rule
from stack.ir.node import Node
from stack.ir.ragged_op import RaggedAxes, ragged_axes

Tensor = torch.Tensor
ALIGNMENT = 16  # bytes; the library requires row strides that are multiples


def ragged_product(node: Node, x: Tensor, y: Tensor, ends: Tensor, kind: torch.dtype) -> Tensor:
    """Computes a `ragged_dot` in an element type.

    Never waits for the device, although the rows of each group are known only there.
    """
    axes = ragged_axes(node)
    made = _of_library(axes, x, y, ends, kind)
    if made is None:
        return _one_by_one(axes, x.to(kind), y.to(kind), ends)
    if axes.sums_rows or node.attrs.get("loose"):
        return made
    # the library does not write rows that belong to no group
    inside = torch.arange(x.shape[axes.left.index(axes.rows)], device=x.device) < ends[-1]
    return torch.where(_along(inside, axes.result, axes.rows), made, 0)


def _of_library(
    axes: RaggedAxes, x: Tensor, y: Tensor, ends: Tensor, kind: torch.dtype
) -> Tensor | None:
    """Computes it by one call of torch; None if torch has no kernel."""
    is_short = {x.dtype, y.dtype, kind} == {torch.bfloat16}
    if not is_short or not x.is_cuda or (x.dim(), y.dim()) != (2, 2 if axes.sums_rows else 3):
        return None
    rows, groups = axes.rows, axes.groups
    (inner,) = (n for n in axes.left if n != rows)
    (outer,) = (n for n in axes.right if n not in (inner, rows, groups))
    orders = ((rows, inner), (groups, inner, outer), (rows, outer))
    if axes.sums_rows:
        orders = ((inner, rows), (rows, outer), (groups, inner, outer))
    left = x.permute([axes.left.index(n) for n in orders[0]])
    right = y.permute([axes.right.index(n) for n in orders[1]])
    if not _is_aligned(left) or not _is_aligned(right):
        return None
    made = torch.ops.aten._grouped_mm(left, right, offs=ends.to(torch.int32))
    return made.permute([orders[2].index(n) for n in axes.result])


def _is_aligned(x: Tensor) -> bool:
    """True if one of the last two axes is contiguous and the other has an aligned stride."""
    strides = sorted(x.stride()[-2:])
    return strides[0] == 1 and strides[1] * x.element_size() % ALIGNMENT == 0


def _one_by_one(axes: RaggedAxes, x: Tensor, y: Tensor, ends: Tensor) -> Tensor:
    """Computes one matmul per group over all rows, with the rows of other groups masked."""
    text = einsum_text(parse_rule(axes.plain_rule))
    made: Tensor | None = None
    parts: list[Tensor] = []
    for number, inside in enumerate(_masks(ends, x.shape[axes.left.index(axes.rows)])):
        if axes.sums_rows:
            left = torch.where(_along(inside, axes.left, axes.rows), x, 0)
            right = torch.where(_along(inside, axes.right, axes.rows), y, 0)
            parts.append(torch.einsum(text, left, right))
            continue
        part = torch.einsum(text, x, y.select(axes.right.index(axes.groups), number))
        shown = _along(inside, axes.result, axes.rows)
        made = torch.where(shown, part, torch.zeros_like(part) if made is None else made)
    if axes.sums_rows:
        return torch.stack(parts, axes.result.index(axes.groups))
    assert made is not None
    return made


def _masks(ends: Tensor, rows: int) -> Iterator[Tensor]:
    """Yields for each group the mask of its rows."""
    line = torch.arange(rows, device=ends.device)
    before: Tensor | None = None
    for end in ends.unbind():
        below = line < end
        yield below if before is None else below & ~before
        before = below if before is None else below | before


def _along(mask: Tensor, axes: Sequence[str], axis: str) -> Tensor:
    """Reshapes a mask of one axis to broadcast with an array of these axes."""
    return mask.reshape([-1 if n == axis else 1 for n in axes])
