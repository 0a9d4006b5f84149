"""`fill_diagonal_` as a masked fill, which can write through any view.

Torch's own version uses strides. On a view they reach outside the memory that a trace knows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


def fill_diagonal_(x: Tensor, fill_value: Any, wrap: bool = False) -> Tensor:
    """Writes a number to the elements whose indices are all equal.

    Args:
        x: a matrix, or a tensor with more axes of one size.
        wrap: if true, the diagonal of a tall matrix restarts one row below its end.

    Raises:
        RuntimeError: for other shapes, raised by torch.
    """
    if x.dim() < 2 or (x.dim() > 2 and len(set(x.shape)) > 1):
        return x.fill_diagonal_(fill_value, wrap)  # raises
    lines = [torch.arange(n, device=x.device) for n in x.shape]
    first, *others = torch.meshgrid(*lines, indexing="ij")
    if wrap and x.dim() == 2:
        width = x.shape[1]
        return x.masked_fill_((first * width + others[0]) % (width + 1) == 0, fill_value)
    inside = first == others[0]
    for other in others[1:]:
        inside = inside & (first == other)
    return x.masked_fill_(inside, fill_value)


WRITTEN: dict[Any, Callable[..., Any]] = {"fill_diagonal_": fill_diagonal_}
