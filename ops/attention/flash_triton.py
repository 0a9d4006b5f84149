"""Flash attention forward for Hopper, hand-written in Triton.

The online softmax of Dao, "FlashAttention-2" (2023), over tiles loaded by the tensor memory
accelerator (TMA). A program keeps one tile of queries and iterates over keys and values.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from stack.errors import UsageError

Tensor = torch.Tensor


@dataclass(frozen=True)
class Config:
    """Tile sizes: `rows` queries by `columns` keys."""

    rows: int
    columns: int
    warps: int
    stages: int


# best first, measured on an H100; the order depends on sequence length and mask
CONFIGS = (Config(128, 64, 4, 2), Config(128, 128, 8, 3), Config(128, 64, 4, 3))


@triton.jit
def _walk(
    acc, total, top, q, k_desc, v_desc, group, begin, end, first_row, length, scale,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, WIDTH: tl.constexpr, MASKED: tl.constexpr,
    CAUSAL: tl.constexpr,
):  # fmt: skip
    """Processes the keys from `begin` to `end` for one tile of queries. Returns the updated
    unnormalized output, sum of weights and maximum score of each query."""
    for start in tl.range(begin, end, COLUMNS):  # pyright: ignore
        k = k_desc.load([group, start, 0]).reshape(COLUMNS, WIDTH)
        scores = tl.dot(q, k.T)
        if MASKED:
            columns = start + tl.arange(0, COLUMNS)
            seen = columns[None, :] < length
            if CAUSAL:
                rows = first_row + tl.arange(0, ROWS)
                seen = seen & (columns[None, :] <= rows[:, None])
            scores = tl.where(seen, scores, float("-inf"))
        newest = tl.maximum(top, tl.max(scores, 1) * scale)
        weights = tl.math.exp2(scores * scale - newest[:, None])
        correction = tl.math.exp2(top - newest)
        total = total * correction + tl.sum(weights, 1)
        acc = acc * correction[:, None]
        v = v_desc.load([group, start, 0]).reshape(COLUMNS, WIDTH)
        acc = tl.dot(weights.to(v.dtype), v, acc)
        top = newest
    return acc, total, top


@triton.jit
def attention_kernel(
    q_desc, k_desc, v_desc, o_desc, lse_ptr, length, scale, SHARE: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, WIDTH: tl.constexpr, CAUSAL: tl.constexpr,
):  # fmt: skip
    """Computes one tile of queries of one head. `scale` includes the factor log2(e) for exp2."""
    tile = tl.program_id(0)
    if CAUSAL:
        tile = tl.num_programs(0) - 1 - tile  # the longest loops first
    head = tl.program_id(1)
    group = head // SHARE
    first_row = tile * ROWS
    q = q_desc.load([head, first_row, 0]).reshape(ROWS, WIDTH)
    acc = tl.zeros([ROWS, WIDTH], tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    top = tl.full([ROWS], float("-inf"), tl.float32)
    # full tiles without a mask, then the diagonal or the ragged end
    plain = length // COLUMNS * COLUMNS
    end = length
    if CAUSAL:
        plain = tl.minimum(first_row // COLUMNS * COLUMNS, plain)
        end = tl.minimum(first_row + ROWS, length)
    acc, total, top = _walk(
        acc, total, top, q, k_desc, v_desc, group, 0, plain, first_row, length, scale,
        ROWS, COLUMNS, WIDTH, False, CAUSAL,
    )  # fmt: skip
    acc, total, top = _walk(
        acc, total, top, q, k_desc, v_desc, group, plain, end, first_row, length, scale,
        ROWS, COLUMNS, WIDTH, True, CAUSAL,
    )  # fmt: skip
    out = (acc / total[:, None]).to(q.dtype)
    o_desc.store([head, first_row, 0], out.reshape(1, ROWS, WIDTH))
    rows = first_row + tl.arange(0, ROWS)
    lse = (top + tl.log2(total)) * 0.6931471805599453  # ln(2)
    tl.store(lse_ptr + head.to(tl.int64) * length + rows, lse, rows < length)


def tiles_of(x: Tensor, rows: int) -> TensorDescriptor:
    """Returns a descriptor of tiles [1, rows, width] of `x [..., length, width]`.

    Elements past an end are read as 0.
    """
    return TensorDescriptor.from_tensor(
        x.contiguous().view(-1, *x.shape[-2:]), [1, rows, x.shape[-1]]
    )


def attention(
    q: Tensor, k: Tensor, v: Tensor, causal: bool = False, config: Config = CONFIGS[0]
) -> Tensor:
    """Returns softmax(q k^T / sqrt(D)) v; `causal` hides keys after the query."""
    return attention_with_lse(q, k, v, causal, config)[0]


def attention_with_lse(
    q: Tensor, k: Tensor, v: Tensor, causal: bool = False, config: Config = CONFIGS[0]
) -> tuple[Tensor, Tensor]:
    """Returns the same, and the log-sum-exp of scores [B, H, S] in f32.

    Args:
        q: bf16 or f16, [B, H, S, D] with D 64 or 128.
        k, v: [B, G, S, D]; each of the G heads serves H / G heads of q.

    Raises:
        UsageError: shapes or element types that the kernel does not support.
    """
    batch, heads, length, width = q.shape
    groups = k.shape[1]
    if k.shape != v.shape or k.shape != (batch, groups, length, width) or heads % groups:
        raise UsageError(f"q {list(q.shape)}, k {list(k.shape)}, v {list(v.shape)} do not fit")
    if width not in (64, 128) or q.dtype not in (torch.float16, torch.bfloat16):
        raise UsageError(f"only heads of 64 or 128 in f16 or bf16, not {width} in {q.dtype}")
    out = torch.empty_like(q, memory_format=torch.contiguous_format)
    lse = torch.empty(q.shape[:-1], dtype=torch.float32, device=q.device)
    if not out.numel():
        return out, lse
    sizes = (config.rows, config.columns, config.columns, config.rows)
    grid = (triton.cdiv(length, config.rows), batch * heads)
    launch: Any = attention_kernel[grid]
    launch(
        *map(tiles_of, (q, k, v, out), sizes), lse, length,
        math.log2(math.e) / math.sqrt(width), heads // groups,
        config.rows, config.columns, width, causal,
        num_warps=config.warps, num_stages=config.stages,
    )  # fmt: skip
    return out, lse


def launched(q: Tensor, k: Tensor, v: Tensor, *, causal: bool, **_: Any) -> Tensor:
    """The entry point for the operator `attention.attention`."""
    return attention(q, k, v, causal)


def launched_with_lse(
    q: Tensor, k: Tensor, v: Tensor, *, causal: bool, **_: Any
) -> tuple[Tensor, Tensor]:
    """The entry point for the operator `attention.with_lse`."""
    return attention_with_lse(q, k, v, causal)


def reference(q: Tensor, k: Tensor, v: Tensor, causal: bool = False) -> Tensor:
    """Attention in double precision, for comparison."""
    share = q.shape[1] // k.shape[1]
    q, k, v = q.double(), k.double(), v.double()
    k, v = k.repeat_interleave(share, 1), v.repeat_interleave(share, 1)
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    if causal:
        hidden = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
        scores = scores.masked_fill(hidden, -math.inf)
    return torch.softmax(scores, -1) @ v
