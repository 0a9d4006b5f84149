"""Random ops of torch: each is drawn by torch itself, as eager draws, in the program's order.

What an op draws from the generator depends on the generator's kind, on the op and on how its
tensors lie in memory. So no op that draws is decomposed into another, its operands keep the strides
that torch traced, and each draw has the one before it as an operand.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._C import DispatchKey
from torch.fx import Graph

aten = torch.ops.aten
# Torch's decompositions of these draw by ops that eager's kernels draw by too.
_FAITHFUL = frozenset({aten._scaled_dot_product_flash_attention_for_cpu.default})


def draws(op: Any) -> bool:
    """Whether an operator takes numbers from the generator."""
    return torch.Tag.nondeterministic_seeded in getattr(op, "tags", ())


def draws_as_eager(op: Any) -> bool:
    """Whether torch's decomposition of an operator takes the numbers that eager takes."""
    if not draws(op) or op in _FAITHFUL:
        return True
    # what eager itself runs as other ops; dropout is decomposed to `native_dropout`
    return bool(op.has_kernel_for_dispatch_key(DispatchKey.CompositeImplicitAutograd))


def has_effect(op: Any) -> bool:
    """Whether two equal calls may differ, or must both happen."""
    return draws(op) or op._schema.is_mutable


def traced_strides(value: Any) -> tuple[Any, ...] | None:
    """Strides that a draw depends on; None for a tensor that is dense in the order of its axes."""
    if not isinstance(value, torch.Tensor) or value.is_contiguous():
        return None
    return tuple(value.stride())


def with_strides(tensor: torch.Tensor, strides: Sequence[int], offset: int = 0) -> torch.Tensor:
    """The values of a tensor in other strides; along a stride of 0 they are all the same.

    Args:
        offset: elements of its memory before the first.
    """
    lone = tensor[tuple(slice(None) if k else slice(0, 1) for k in strides)]
    span = sum((size - 1) * k for size, k in zip(lone.shape, strides, strict=True)) + 1
    memory = lone.new_empty(offset + (span if lone.numel() else 0))
    return memory.as_strided(lone.shape, strides, offset).copy_(lone).expand(tensor.shape)


def keep_draws(graph: Graph) -> None:
    """Let no backward pass draw again, in a checkpoint neither: it takes what was drawn."""
    for node in graph.nodes:
        if draws(node.target):
            node.meta.pop("recompute", None)


# ---- dropout


def native_dropout(
    x: torch.Tensor, p: float, train: bool | None
) -> tuple[torch.Tensor, torch.Tensor] | Any:
    """What eager's `dropout` does on a CPU, where it has no kernel; elsewhere the kernel itself."""
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
    """The derivative, rounded as `native_dropout` is."""
    if grad.device.type != "cpu":
        return grad * (mask.type_as(grad) * scale)
    kept = mask.type_as(grad)
    return grad * (kept.div(1 / scale) if scale else kept * 0.0)


def normal(mean: Any, std: Any, generator: Any = None) -> Any:
    """Eager's `normal` of a tensor: the first one's element type, of whatever the other is.

    Torch traces the type that both promote to, which no draw of eager's has.
    """
    tensors = [x for x in (mean, std) if isinstance(x, torch.Tensor)]
    if generator is not None or tensors[0].device.type != "cpu":
        return NotImplemented
    kind = tensors[0].dtype
    shape = torch.broadcast_shapes(*(x.shape for x in tensors))
    if isinstance(std, torch.Tensor):
        text = "normal expects all elements of std >= 0.0"
        torch._assert_async((std >= 0).all(), text)  # pyright: ignore[reportPrivateImportUsage]
    drawn = aten.normal_functional(tensors[0].new_empty(shape), 0.0, 1.0)
    return ((drawn * std).to(kind) + mean).to(kind)


def _memory_order(x: torch.Tensor) -> tuple[list[int], list[int]]:
    """The axes of a tensor like `x` from the outermost to the innermost, and the way back."""
    strides = torch.empty_like(x).stride()
    order = sorted(range(x.dim()), key=lambda axis: strides[axis], reverse=True)
    return order, sorted(range(x.dim()), key=order.__getitem__)


DECOMPOSITIONS: dict[Any, Callable[..., Any]] = {
    aten.native_dropout.default: native_dropout,
    aten.native_dropout_backward.default: native_dropout_backward,
    aten.normal.Tensor_Tensor: normal,
}
