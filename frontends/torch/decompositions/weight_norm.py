"""`weight_norm` and its backward pass; torch has one fused kernel for each.

Torch's decomposition of the forward op is wrong for a tensor with one axis: it takes the norm of
the whole tensor.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


def weight_norm(v: Tensor, g: Tensor, dim: int = 0) -> tuple[Tensor, Tensor]:
    """Returns `g * v / norms`, and the norms of `v` over all axes except `dim`, kept with size 1.

    16-bit floats and their norms are computed in f32.
    """
    direction, length = _wide(v, g)
    norms = _summed(direction.square(), dim).sqrt()
    return (direction * (length / norms)).to(v.dtype), norms


def weight_norm_backward(
    grad: Tensor, v: Tensor, g: Tensor, norms: Tensor, dim: int
) -> tuple[Tensor, Tensor]:
    """Returns the gradients of `weight_norm` for `v` and `g`."""
    wide_grad, direction, length, norms = _wide(grad, v, g, norms)
    along = _summed(wide_grad * direction, dim) / norms
    grad_v = length / norms * (wide_grad - direction * (along / norms))
    return grad_v.to(v.dtype), along.to(g.dtype)


def _wide(*tensors: Tensor) -> list[Tensor]:
    """Casts 16-bit floats to f32."""
    short = (torch.bfloat16, torch.float16)
    return [t.float() if t.dtype in short else t for t in tensors]


def _summed(x: Tensor, dim: int) -> Tensor:
    """Sums over all axes except one."""
    axes = [axis for axis in range(x.dim()) if axis != dim % x.dim()]
    return x.sum(axes, keepdim=True) if axes else x


DECOMPOSITIONS: dict[Any, Callable[..., Any]] = {
    torch.ops.aten._weight_norm_interface.default: weight_norm,
    torch.ops.aten._weight_norm_interface_backward.default: weight_norm_backward,
}
