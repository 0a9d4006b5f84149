"""Random ops of torch: torch draws them as in eager, in program order.

The numbers that an op draws depend on the kind of generator, on the op, and on the strides of its
tensors. So an op that draws is not decomposed into others, its operands keep the strides that torch
traced, and each draw has the previous one as an operand.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx import Graph

from stack.frameworks.torch_private import is_composite, is_written

aten = torch.ops.aten
# Torch's decompositions of these use the same random ops as eager's kernels.
_FAITHFUL = frozenset({aten._scaled_dot_product_flash_attention_for_cpu.default})


def draws(op: Any) -> bool:
    """True if an operator draws from the generator."""
    return torch.Tag.nondeterministic_seeded in getattr(op, "tags", ())


def draws_as_eager(op: Any) -> bool:
    """True if torch's decomposition of an operator draws the same numbers as eager."""
    if not draws(op) or op in _FAITHFUL:
        return True
    # eager runs it as other ops; dropout is decomposed to `native_dropout`
    return is_composite(op)


def has_effect(op: Any) -> bool:
    """True if two equal calls may differ, or must both happen."""
    return draws(op) or is_written(op)


def traced_strides(value: Any) -> tuple[Any, ...] | None:
    """Returns the strides that a draw depends on; None for a contiguous tensor."""
    if not isinstance(value, torch.Tensor) or value.is_contiguous():
        return None
    return tuple(value.stride())


def with_strides(tensor: torch.Tensor, strides: Sequence[int], offset: int = 0) -> torch.Tensor:
    """Copies a tensor to other strides; along stride 0 its elements are equal.

    Args:
        offset: elements of memory before the first one.
    """
    lone = tensor[tuple(slice(None) if k else slice(0, 1) for k in strides)]
    span = sum((size - 1) * k for size, k in zip(lone.shape, strides, strict=True)) + 1
    memory = lone.new_empty(offset + (span if lone.numel() else 0))
    return memory.as_strided(lone.shape, strides, offset).copy_(lone).expand(tensor.shape)


def keep_draws(graph: Graph) -> None:
    """Save draws for the backward pass, also in a checkpoint, instead of repeating them."""
    for node in graph.nodes:
        if draws(node.target):
            node.meta.pop("recompute", None)


# ---- dropout


def native_dropout(
    x: torch.Tensor, p: float, train: bool | None
) -> tuple[torch.Tensor, torch.Tensor] | Any:
    """Computes eager's `dropout` on a CPU as other ops; on other devices torch's kernel is used."""
    if train is False or p == 0 or not x.numel():
        return x.clone(), torch.ones_like(x, dtype=torch.bool)
    if p == 1:
        return x * torch.zeros((), dtype=x.dtype, device=x.device), torch.zeros_like(x).bool()
    if x.device.type != "cpu":
        return NotImplemented
    order, back = _memory_order(x)
    noise = aten.bernoulli.p(x.permute(order), 1 - p).permute(back)
    return x * noise.div(1 - p), noise.bool()


def native_dropout_backward(grad: torch.Tensor, mask: torch.Tensor, scale: float) -> Any:
    """Computes the derivative, rounded like `native_dropout`."""
    if grad.device.type != "cpu":
        return grad * (mask.type_as(grad) * scale)
    kept = mask.type_as(grad)
    return grad * (kept.div(1 / scale) if scale else kept * 0.0)


def normal(mean: Any, std: Any, generator: Any = None) -> Any:
    """Computes eager's `normal`: the result has the element type of the first tensor.

    Torch's tracing gives the promoted type of both, which eager never returns.
    """
    tensors = [x for x in (mean, std) if isinstance(x, torch.Tensor)]
    if generator is not None or tensors[0].device.type != "cpu":
        return NotImplemented
    kind = tensors[0].dtype
    shape = torch.broadcast_shapes(*(x.shape for x in tensors))
    if isinstance(std, torch.Tensor):
        text = "normal expects all elements of std >= 0.0"
        aten._assert_async.msg((std >= 0).all(), text)
    drawn = aten.normal_functional(tensors[0].new_empty(shape), 0.0, 1.0)
    return ((drawn * std).to(kind) + mean).to(kind)


def _memory_order(x: torch.Tensor) -> tuple[list[int], list[int]]:
    """Returns the axes of an empty copy of `x` in memory order, outermost first.

    Also returns the inverse permutation.
    """
    strides = torch.empty_like(x).stride()
    order = sorted(range(x.dim()), key=lambda axis: strides[axis], reverse=True)
    return order, sorted(range(x.dim()), key=order.__getitem__)


DECOMPOSITIONS: dict[Any, Callable[..., Any]] = {
    aten.native_dropout.default: native_dropout,
    aten.native_dropout_backward.default: native_dropout_backward,
    aten.normal.Tensor_Tensor: normal,
}
