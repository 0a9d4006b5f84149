"""Ops that torch traces in another layout than it gives: decomposed into what tells the layout."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

aten = torch.ops.aten


def constant_pad(x: torch.Tensor, pad: Sequence[Any], value: Any = 0) -> Any:
    """Padding by no more than nothing copies a part of its operand, as that lies in memory.

    Amounts that are symbols are guarded: those of a graph are either such amounts, or not.
    """
    if any(amount > 0 for amount in pad):
        return NotImplemented
    for number in range(len(pad) // 2):
        low, high = pad[2 * number : 2 * number + 2]
        axis = x.dim() - 1 - number
        x = x.narrow(axis, -low, x.shape[axis] + low + high)
    return x.clone()


DECOMPOSITIONS: dict[Any, Callable[..., Any]] = {aten.constant_pad_nd.default: constant_pad}
