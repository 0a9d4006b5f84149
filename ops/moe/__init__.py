"""Mixtures of experts: routing, dispatch and combine of tokens, and grouped matmuls.

        gates = top_k(scores, top=2)                         [t, e], 0 for experts not chosen
        tokens, sizes = plan(gates, queue)                   tokens of rows in expert order
    rows = dispatch(x, tokens)                           [s, d]
    rows = grouped_gemm(swiglu(grouped_gemm(rows, up, sizes), ...), down, sizes)
    y = combine(rows, gates, tokens, sizes)              [t, d]

`queue [s]` is the space for rows, all -1. With tokens times `top` rows, no token is dropped. With a
`capacity`, an expert takes that many tokens, the first ones, and drops the others. Sources: Shazeer
et al., 2017; Lepikhin et al., GShard, 2020; Gale et al., MegaBlocks, 2022 (dropless).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stack.errors import RuleError
from stack.hosted import Kernel, op
from stack.ops.moe import reference
from stack.ops.moe.steps import after, grouped_sums, scattered
from stack.ops.qgemm.storage import format_named, minifloat

__all__ = ["combine", "dispatch", "grouped_gemm", "grouped_gemm_fp8", "plan", "top_k"]


@op("moe.top_k", rule="... e! -> ... e!", reference=reference.top_k, autocast="f32")
def top_k(np, scores, *, top: int = 2, normalize: bool = True):
    """Softmax over experts, kept for the `top` largest, on ties the first ones; 0 elsewhere.

    `scores [..., e]` floats. `normalize` divides the kept ones by their sum. Shazeer et al., 2017.
    """
    experts = scores.shape[-1]
    if not 1 <= top <= experts:
        raise RuleError(f"'top' is {top}, but 'scores' has {experts} experts")
    wide = scores.astype(np.result_type(scores, np.float32))
    parts = np.exp(wide - np.max(wide, axis=-1, keepdims=True))
    shares = parts / np.sum(parts, axis=-1, keepdims=True)
    each = np.arange(experts, dtype=np.int64)
    left = shares
    for _ in range(top):
        # shares are nonnegative, so -1 marks the ones that were taken
        left = np.where(np.argmax(left, axis=-1)[..., None] == each, -1.0, left)
    kept = np.where(left < 0.0, shares, 0.0)
    if normalize:
        kept = kept / np.sum(kept, axis=-1, keepdims=True)
    return kept.astype(scores.dtype)


@op("moe.plan", rule="t e!, s!: -1 <= i32 < 0 -> s!, e!", reference=reference.plan)
def plan(np, gates, queue, *, capacity: int = 0):
    """Returns the token of each row in expert order (-1 for none), and the rows per expert.

    `gates [t, e]`: a token goes to the experts whose gates are not 0. `queue [s]` int32, all -1, is
    the space for rows. `capacity`: maximum number of tokens per expert, 0 for no limit. Tokens over
    capacity, and rows that do not fit, are dropped. Both results are int32.
    """
    if capacity < 0:
        raise RuleError(f"'capacity' is {capacity}; write 0 for no limit")
    tokens, experts = gates.shape
    goes = (gates != 0.0).astype(np.int32)
    rank = np.cumsum(goes, axis=0).astype(np.int32) - goes
    room = queue.shape[0]
    if capacity:
        goes = goes * (rank < capacity).astype(np.int32)
    asked = np.cumsum(np.sum(goes, axis=0), axis=0).astype(np.int32)
    ends = np.minimum(asked, room)
    sizes = ends - after(np, ends)
    slot = after(np, ends) + rank
    inside = (goes != 0) & (slot < ends)
    # one extra slot takes everything that is dropped
    slot = np.where(inside, slot, room).reshape(-1)
    token = np.broadcast_to(np.arange(tokens, dtype=np.int32)[:, None], (tokens, experts))
    more = np.concatenate([queue, np.full((1,), -1, np.int32)], axis=0)
    return scattered(np, more, slot, token.reshape(-1), "set")[:room], sizes


@op("moe.dispatch", rule="t d: any, s: int < t or -1 -> s d", reference=reference.dispatch)
def dispatch(np, x, tokens):
    """Gathers the rows of tokens: `x [t, d]`, `tokens [s]` int32; rows of token -1 are 0."""
    rows = np.take(x, np.maximum(tokens, 0), axis=0)
    return rows * (tokens >= 0).astype(x.dtype)[:, None]


@op(
    "moe.combine",
    rule="s d, t! e, s: i32 < t or -1, e: sum i32 <= s -> t! d",
    reference=reference.combine,
)
def combine(np, rows, gates, tokens, sizes):
    """Sums the rows of each token, weighted by the gate of their expert.

    `rows [s, d]`, `gates [t, e]` of one type; `tokens [s]` and `sizes [e]` int32 from `plan`. A
    token without rows gives 0. Sums are in at least f32.
    """
    count, experts = gates.shape
    wide = np.result_type(rows, np.float32)
    token = np.maximum(tokens, 0)
    place = np.arange(rows.shape[0], dtype=np.int32)[:, None]
    expert = np.sum((np.cumsum(sizes, axis=0) <= place).astype(np.int32), axis=-1)
    flat = token * experts + np.minimum(expert, experts - 1)
    gate = np.take(gates.reshape(-1), flat) * (tokens >= 0).astype(gates.dtype)
    weighted = rows.astype(wide) * gate.astype(wide)[:, None]
    start = np.broadcast_to(np.full((1, 1), 0.0, wide), (count, rows.shape[1]))
    return scattered(np, start, token, weighted, "add").astype(rows.dtype)


def _kernel(name: str, *dtypes: str, refuses: Callable[..., str]) -> Kernel:
    run = f"stack.ops.moe.grouped_gluon:{name}"
    return Kernel("cuda", run, "gluon", dtypes, refuses, capturable=True, arch="sm_90")


def _lines(x: Any, weight: Any, *_: Any, **__: Any) -> str:
    size = 16 // x.dtype.bytes
    is_whole = x.shape[1] % size == 0 and weight.shape[1] % 8 == 0
    return "" if is_whole else "rows are not multiples of 16 bytes"


@op(
    "moe.grouped_gemm",
    rule="s! k, e n k, e: sum int <= s -> s! n",
    reference=reference.grouped_gemm,
    kernels=(_kernel("grouped", "bf16", "f16", refuses=_lines),),
    autocast="low",
)
def grouped_gemm(np, x, weight, sizes):
    """x @ weight[e].T for the rows of each expert; `sizes [e]` rows each, in order.

    `x [s, k]`, `weight [e, n, k]` of one float type; rows after the last expert's give 0. Sums are
    in at least f32. Source: Gale et al., MegaBlocks, 2022.
    """
    return grouped_sums(np, x, weight, sizes).astype(x.dtype)


def _not_fp8(*types: Any, format: str) -> str:
    return _lines(*types) if format == "e4m3" else f"it supports e4m3, not {format}"


@op(
    "moe.grouped_gemm_fp8",
    rule="s! k: u8, e n k: u8, s!, e n, e: sum i32 <= s -> s! n",
    reference=reference.grouped_gemm_fp8,
    kernels=(_kernel("grouped_fp8", "f32", refuses=_not_fp8),),
)
def grouped_gemm_fp8(np, x, weight, x_scale, weight_scale, sizes, *, format: str = "e4m3"):
    """`grouped_gemm` of 8-bit floats, times a scale per row and per column of each expert.

    `x [s, k]`, `weight [e, n, k]` uint8, codes of `format`; `x_scale [s]`, `weight_scale [e, n]` of
    one float type, which is also that of the sums and of the result.
    """
    if format_named(format).bits != 8:
        raise RuleError(f"'format' must have 8 bits, unlike {format!r}")
    wide = np.result_type(x_scale, np.float32)
    left, right = (minifloat(np, codes, format, wide) for codes in (x, weight))
    ends = np.cumsum(sizes, axis=0)
    place = np.arange(x.shape[0], dtype=np.int32)[:, None]
    expert = np.sum((ends <= place).astype(np.int32), axis=-1)
    columns = np.take(weight_scale, np.minimum(expert, sizes.shape[0] - 1), axis=0).astype(wide)
    scaled = grouped_sums(np, left, right, sizes) * x_scale.astype(wide)[:, None] * columns
    return scaled.astype(x_scale.dtype)
