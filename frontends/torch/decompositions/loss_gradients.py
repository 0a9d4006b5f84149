"""Gradients of mean losses of empty inputs, where torch's decompositions divide by zero."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.fx.experimental.symbolic_shapes import statically_known_true

from stack.frameworks.torch_private import decompositions

aten = torch.ops.aten
_GRADIENTS = (
    aten.mse_loss_backward.default,
    aten.smooth_l1_loss_backward.default,
    aten.huber_loss_backward.default,
)


def _of_any_size(decomposition: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps the decomposition of a loss's gradient: an empty input has an empty gradient."""

    def gradient(upstream: torch.Tensor, x: torch.Tensor, *more: Any) -> torch.Tensor:
        if statically_known_true(x.numel() == 0):
            return torch.empty_like(x)
        return decomposition(upstream, x, *more)

    return gradient


DECOMPOSITIONS: dict[Any, Callable[..., Any]] = {
    op: _of_any_size(decompositions()[op]) for op in _GRADIENTS
}
