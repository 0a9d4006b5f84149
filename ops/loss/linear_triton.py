"""Cross-entropy of a linear layer in Triton: tiles of logits exist in registers only.

A program takes a tile of rows and a part of the classes. It iterates over tiles of classes,
computes their logits with tensor cores, and keeps a maximum, a sum of exponentials and the target's
logit for each row. The parts are merged afterwards. The kernel is bound by the matmuls. Logits
would be `n v` elements in memory; here only three numbers per row and part are stored. Programs
that run concurrently share a few tiles of rows, which stay in the L2 cache while classes are
streamed.
Source: the online softmax of Milakov and Gimelshein, 2018; Wijmans et al., 2024.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

Tensor = torch.Tensor


@dataclass(frozen=True)
class Config:
    """Tile sizes: `rows`, `classes`, and `depth` along the contracted axis.

    `group` tiles of rows are in the L2 cache at the same time.
    """

    rows: int = 128
    classes: int = 256
    depth: int = 64
    warps: int = 8
    stages: int = 3
    group: int = 16


CONFIG = Config()
PROGRAMS = 132  # multiprocessors of an H200, which one group should fill


@triton.jit
def linear_cross_entropy_kernel(
    x_desc, w_desc, target_ptr, top_ptr, total_ptr, picked_ptr, rows, classes, depth, share, parts,
    ROWS: tl.constexpr, CLASSES: tl.constexpr, DEPTH: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """Computes one tile of rows, for one part of the classes."""
    together = GROUP * parts
    number = tl.program_id(0)
    first = number // together * GROUP
    wide = tl.minimum(tl.cdiv(rows, ROWS) - first, GROUP)
    first_row = (first + number % together % wide) * ROWS
    part = number % together // wide
    row = first_row + tl.arange(0, ROWS)
    inside = row < rows
    target = tl.load(target_ptr + row, inside, -1)
    top = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    picked = tl.zeros([ROWS], tl.float32)
    end = tl.minimum((part + 1) * share, classes)
    for start in range(part * share, end, CLASSES):
        column = start + tl.arange(0, CLASSES)
        known = column < end
        logits = tl.zeros([ROWS, CLASSES], tl.float32)
        for k in range(0, depth, DEPTH):
            x, w = x_desc.load([first_row, k]), w_desc.load([start, k])  # 0 past the ends
            logits = tl.dot(x, w.T, logits)
        picked += tl.sum(tl.where(column[None, :] == target[:, None], logits, 0.0), 1)
        logits = tl.where(known[None, :], logits, float("-inf"))
        newest = tl.maximum(top, tl.max(logits, 1))
        total = total * tl.exp(top - newest) + tl.sum(tl.exp(logits - newest[:, None]), 1)
        top = newest
    place = part * rows + row
    tl.store(top_ptr + place, top, inside)
    tl.store(total_ptr + place, total, inside)
    tl.store(picked_ptr + place, picked, inside)


def linear_cross_entropy(
    x: Tensor, weight: Tensor, target: Tensor, *, ignore_index: int, config: Config = CONFIG
) -> Tensor:
    """Returns the cross-entropy of the logits `x weight^T` for each target, in f32.

    `x [..., k]`, `weight [v, k]` and `target [...]` are contiguous; k is a multiple of 8. The loss
    is 0 where the target is `ignore_index`.
    """
    rows, (classes, depth) = target.numel(), weight.shape
    if not rows or not classes:
        return torch.zeros(target.shape, dtype=torch.float32, device=x.device)
    tiles: int = -(-rows // config.rows)
    walks = -(-classes // config.classes)  # tiles of classes, to be split into parts
    beside = min(tiles, config.group)
    share = -(-walks // min(-(-PROGRAMS // beside), walks)) * config.classes
    parts = -(-classes // share)
    top, total, picked = (
        torch.empty(parts, rows, dtype=torch.float32, device=x.device) for _ in range(3)
    )
    described = (
        TensorDescriptor.from_tensor(x.reshape(rows, depth), [config.rows, config.depth]),
        TensorDescriptor.from_tensor(weight, [config.classes, config.depth]),
    )
    launch: Any = linear_cross_entropy_kernel[(tiles * parts,)]
    launch(
        *described, target, top, total, picked, rows, classes, depth, share, parts,
        config.rows, config.classes, config.depth, config.group,
        num_warps=config.warps, num_stages=config.stages,
    )  # fmt: skip
    highest = top.amax(0)
    sums = (total * torch.exp(top - highest)).sum(0)
    loss = highest + torch.log(sums) - picked.sum(0)
    return torch.where(target.reshape(-1) != ignore_index, loss, 0).reshape(target.shape)
