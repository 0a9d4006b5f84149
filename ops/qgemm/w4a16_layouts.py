"""4-bit weights in other libraries' layouts, for the CUDA C++ kernel with few rows of x.

AutoAWQ and AutoGPTQ store k in columns of words; GGUF stores scales and codes in one block. These
codes are converted at the first call, to 8 neighbours of k per word, with zero points or minima
next to the scales. The result is kept as long as the weights exist, and takes as much memory again.
NF4 is read in the layout of bitsandbytes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from stack.ops.qgemm.formats import NF4
from stack.ops.qgemm.storage import AWQ_SHIFTS, GPTQ_SHIFTS
from stack.ops.qgemm.w4a16_cuda import product, zero
from stack.ops.qgemm.w4a16_cut import Form

Tensor = torch.Tensor
Laid = tuple[Tensor, ...]


@dataclass(frozen=True)
class _Kept:
    """Converted weights, with the storages and versions they were converted from."""

    stored: tuple[StorageWeakRef, ...]
    versions: tuple[int, ...]
    laid: Laid

    @property
    def is_alive(self) -> bool:
        return not any(held.expired() for held in self.stored)


_KEPT: dict[Any, _Kept] = {}


def kept(lay: Callable[..., Laid], *stored: Tensor) -> Laid:
    """Returns weights converted by `lay`, cached while they exist and are not written to.

    Torch counts writes by its own operators. Writes that bypass the count (`.data`, or a kernel
    with a pointer) are not detected. Nothing is cached for weights that are part of a larger
    memory, nor while a CUDA graph is captured; that graph converts at each replay, unless cached
    earlier.
    """
    key = lay, *((t.data_ptr(), t.shape, t.stride(), t.device) for t in stored)
    versions = tuple(0 if t.is_inference() else t._version for t in stored)
    found = _KEPT.get(key)
    if found and found.is_alive and found.versions == versions:
        return found.laid
    laid = lay(*stored)
    is_captured = stored[0].is_cuda and torch.cuda.is_current_stream_capturing()
    if not is_captured and all(t.nbytes == t.untyped_storage().nbytes() for t in stored):
        for gone in [k for k, old in _KEPT.items() if not old.is_alive]:
            del _KEPT[gone]
        held = tuple(StorageWeakRef(t.untyped_storage()) for t in stored)
        _KEPT[key] = _Kept(held, versions, laid)
    return laid


def codes_of(words: Tensor, shifts: tuple[int, ...], axis: int) -> Tensor:
    """Unpacks each int32 along an axis to eight 4-bit codes (uint8), in the order of `shifts`."""
    parts = [(words >> shift & 15).to(torch.uint8) for shift in shifts]
    return torch.stack(parts, axis + 1).flatten(axis, axis + 1)


def in_words(codes: Tensor) -> Tensor:
    """Packs codes `[k, n]` to `[n, k / 2]`: of 8 neighbours of k, the last 4 are in high halves."""
    k, n = codes.shape
    eights = codes.reshape(k // 8, 2, 4, n)
    return (eights[:, 0] | eights[:, 1] << 4).reshape(k // 2, n).T.contiguous()


def steps_of(scales: Tensor, zeros: Tensor) -> Tensor:
    """Stacks `scales [groups, n]` and zero points `[groups, n]` to `[n, groups, 2]`. The kernel's
    number for code 0 is added to zero points."""
    raised = zeros.to(scales.dtype) + zero(scales.dtype)
    return torch.stack([scales.T, raised.T], -1)


def lay_awq(qweight: Tensor, qzeros: Tensor, scales: Tensor) -> Laid:
    """Converts AutoAWQ's words to `packed` and scales with zero points."""
    codes, zeros = (codes_of(words, AWQ_SHIFTS, 1) for words in (qweight, qzeros))
    return in_words(codes), steps_of(scales, zeros)


def lay_gptq(qweight: Tensor, qzeros: Tensor, scales: Tensor, g_idx: Tensor) -> Laid:
    """Converts AutoGPTQ's words to `packed`, scales with zero points, and an order of k if needed.

    The order is needed if groups are not contiguous in k. If groups differ in size, there is no
    such order, and the weights themselves are returned.
    """
    codes, zeros = codes_of(qweight, GPTQ_SHIFTS, 0), codes_of(qzeros, GPTQ_SHIFTS, 1) + 1
    k, groups = len(codes), len(scales)
    even = torch.arange(groups, device=g_idx.device).repeat_interleave(k // groups)
    order = torch.argsort(g_idx, stable=True)
    if not torch.equal(g_idx[order], even.to(g_idx.dtype)):
        at = g_idx.long()
        return ((codes.to(scales.dtype) - zeros.to(scales.dtype)[at]) * scales[at],)
    laid = in_words(codes[order]), steps_of(scales, zeros)
    return laid if torch.equal(g_idx, g_idx[order]) else (*laid, order)


def lay_q4_k(blocks: Tensor) -> Laid:
    """Converts GGUF's blocks of 256 weights, 8 groups, to `packed` and scales with minima."""
    n = len(blocks)
    held = blocks.reshape(n, -1, 144)
    tops = held[..., :4].contiguous().view(torch.float16).float()
    low, high, rest = held[..., 4:16].split(4, -1)
    scales = torch.cat([low & 63, (rest & 15) | (low >> 2 & 48)], -1)
    minima = torch.cat([high & 63, rest >> 4 | (high >> 2 & 48)], -1)
    steps = torch.stack([tops[..., :1] * scales, tops[..., 1:] * minima], -1).half()
    pairs = held[..., 16:].reshape(n, -1, 1, 32)
    codes = torch.cat([pairs & 15, pairs >> 4], 2).reshape(n, -1)
    return in_words(codes.T), steps.reshape(n, -1, 2)


def awq(x: Tensor, qweight: Tensor, qzeros: Tensor, scales: Tensor) -> Tensor:
    """Multiplies `x [..., k]` with weights in the layout of `w4a16_awq`."""
    packed, steps = kept(lay_awq, qweight, qzeros, scales)
    return product(x, packed, steps, _with_zeros(x, scales))


def gptq(x: Tensor, qweight: Tensor, qzeros: Tensor, scales: Tensor, g_idx: Tensor) -> Tensor:
    """Multiplies `x [..., k]` with weights in the layout of `w4a16_gptq`."""
    packed, *rest = kept(lay_gptq, qweight, qzeros, scales, g_idx)
    if not rest:
        return x @ packed
    steps, *order = rest
    ordered = x[..., order[0]] if order else x
    return product(ordered, packed, steps, _with_zeros(x, scales))


def _with_zeros(x: Tensor, scales: Tensor) -> Form:
    return Form(x.shape[-1] // len(scales), is_near=True, beside="zeros")


def nf4(x: Tensor, packed: Tensor, absmax: Tensor) -> Tensor:
    """Multiplies `x [..., k]` with weights in the layout of `nf4`."""
    form = Form(x.shape[-1] // absmax.shape[1], is_near=True, table=NF4)
    return product(x, packed, absmax, form)


def q4_k(x: Tensor, blocks: Tensor) -> Tensor:
    """Multiplies `x [..., k]` with weights in the layout of `q4_k`."""
    packed, steps = kept(lay_q4_k, blocks)
    return product(x, packed, steps, Form(32, is_near=True, beside="minima"))
