"""Cross-entropy of a linear layer in Triton: tiles of logits live in registers only.

A program takes a tile of rows and a share of the classes; it walks over tiles of classes, makes
their logits with tensor cores, and keeps a maximum, a sum of exponentials and the target's logit of
each row. Shares are merged after. What limits it are the products; logits would be `n v` elements
in memory, here they are three numbers for each row and share.
Source: the streaming softmax of Milakov and Gimelshein, 2018; Wijmans et al., 2024.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl

Tensor = torch.Tensor


@dataclass(frozen=True)
class Config:
    """A tile of `rows` rows, `classes` classes and `depth` of what they sum over."""

    rows: int = 128
    classes: int = 128
    depth: int = 64
    warps: int = 8
    stages: int = 3


CONFIG = Config()
PROGRAMS = 264  # two for each processor of an H200: enough to fill it


@triton.jit
def linear_cross_entropy_kernel(
    x_ptr, w_ptr, target_ptr, top_ptr, total_ptr, picked_ptr, rows, classes, depth, share,
    ROWS: tl.constexpr, CLASSES: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """One tile of rows, one share of the classes."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    part = tl.program_id(1)
    inside = row < rows
    target = tl.load(target_ptr + row, inside, -1)
    x_rows = x_ptr + row[:, None].to(tl.int64) * depth
    top = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    picked = tl.zeros([ROWS], tl.float32)
    end = tl.minimum((part + 1) * share, classes)
    for start in range(part * share, end, CLASSES):
        column = start + tl.arange(0, CLASSES)
        known = column < end
        w_rows = w_ptr + column[None, :].to(tl.int64) * depth
        logits = tl.zeros([ROWS, CLASSES], tl.float32)
        for k in range(0, depth, DEPTH):
            at = k + tl.arange(0, DEPTH)
            x = tl.load(x_rows + at[None, :], inside[:, None] & (at < depth)[None, :], 0.0)
            w = tl.load(w_rows + at[:, None], known[None, :] & (at < depth)[:, None], 0.0)
            logits = tl.dot(x, w, logits)
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
    """`x [..., k]`, `weight [v, k]`, `target [...]`, dense."""
    rows, (classes, depth) = target.numel(), weight.shape
    if not rows or not classes:
        return torch.zeros(target.shape, dtype=torch.float32, device=x.device)
    tiles: int = -(-rows // config.rows)
    walks = -(-classes // config.classes)  # tiles of classes, which parts share
    share = -(-walks // min(-(-PROGRAMS // tiles), walks)) * config.classes
    parts = -(-classes // share)
    top, total, picked = (
        torch.empty(parts, rows, dtype=torch.float32, device=x.device) for _ in range(3)
    )
    launch: Any = linear_cross_entropy_kernel[(tiles, parts)]
    launch(
        x, weight, target, top, total, picked, rows, classes, depth, share,
        config.rows, config.classes, config.depth,
        num_warps=config.warps, num_stages=config.stages,
    )  # fmt: skip
    highest = top.amax(0)
    sums = (total * torch.exp(top - highest)).sum(0)
    loss = highest + torch.log(sums) - picked.sum(0)
    return torch.where(target.reshape(-1) != ignore_index, loss, 0).reshape(target.shape)
