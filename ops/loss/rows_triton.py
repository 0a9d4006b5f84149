"""Cross-entropy of logits in Triton: a program iterates over the classes of a row.

It is bound by memory: logits are read once, and nothing of their size is written.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

Tensor = torch.Tensor
COLUMNS = 4096  # classes per tile


@triton.jit
def cross_entropy_kernel(logits_ptr, target_ptr, loss_ptr, classes, ignored, COLUMNS: tl.constexpr):
    """Computes one row: the running maximum, and the sum of exponentials relative to it."""
    row = tl.program_id(0).to(tl.int64)
    target = tl.load(target_ptr + row)
    first = logits_ptr + row * classes
    top = tl.full([], float("-inf"), tl.float32)
    total = tl.zeros([], tl.float32)
    for start in range(0, classes, COLUMNS):
        columns = start + tl.arange(0, COLUMNS)
        part = tl.load(first + columns, columns < classes, float("-inf")).to(tl.float32)
        newest = tl.maximum(top, tl.max(part, 0))
        total = total * tl.exp(top - newest) + tl.sum(tl.exp(part - newest), 0)
        top = newest
    is_used = target != ignored
    picked = tl.load(first + target, is_used & (target >= 0) & (target < classes), 0.0)
    loss = top + tl.log(total) - picked.to(tl.float32)
    tl.store(loss_ptr + row, tl.where(is_used, loss, 0.0))


def cross_entropy(logits: Tensor, target: Tensor, *, ignore_index: int) -> Tensor:
    """Losses of `logits [..., v]`, `target [...]`; the logit of a target out of range is 0."""
    classes = logits.shape[-1]
    loss = torch.empty(target.shape, dtype=torch.float32, device=logits.device)
    columns = min(1 << max(classes - 1, 0).bit_length(), COLUMNS)
    if loss.numel():
        launch: Any = cross_entropy_kernel[(loss.numel(),)]
        warps = max(columns // 512, 1)
        launch(logits, target, loss, classes, ignore_index, columns, num_warps=warps)
    return loss
