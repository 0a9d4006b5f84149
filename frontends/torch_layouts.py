"""Ops that torch traces in another layout than it gives: decomposed into what tells the layout."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

aten = torch.ops.aten


def constant_pad(x: torch.Tensor, pad: Sequence[Any], value: Any = 0) -> Any:
    """Padding by nothing copies its operand as that lies; an amount that is a symbol is guarded."""
    return x.clone() if all(amount == 0 for amount in pad) else NotImplemented


DECOMPOSITIONS: dict[Any, Callable[..., Any]] = {aten.constant_pad_nd.default: constant_pad}
