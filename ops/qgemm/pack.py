"""Weights to the storage of an operator, each rounded to the nearest: `weight [n, k]` in NumPy.

A function for each operator, `(weight, group) -> operands after x`; `group` neighbours along k
share a scale where the layout leaves that open. ValueError where k does not come out even.
"""

from __future__ import annotations

import numpy as np

from stack.ops.qgemm.formats import (
    E2M1,
    E4M3,
    NF4,
    Minifloat,
    mx_encode,
    nearest,
    nvfp4_encode,
)
from stack.ops.qgemm.storage import AWQ_SHIFTS, GPTQ_SHIFTS

Array = np.ndarray
Arrays = tuple[Array, ...]


def in_groups(weight: Array, group: int) -> Array:
    """`[n, k]` as `[n, groups, group]`. Raises ValueError where k is no multiple."""
    n, k = weight.shape
    if group < 1 or k % group:
        raise ValueError(f"rows of {k} weights have no groups of {group}")
    return weight.reshape(n, k // group, group)


def steps(weight: Array, largest: float) -> Array:
    """What makes `largest` of the largest size along the last axis; 1 where all are 0."""
    top = np.abs(weight).max(-1)
    return np.where(top > 0, top, largest).astype(weight.dtype) / np.array(largest, weight.dtype)


def bytes_of(codes: Array, low: int = 0) -> Array:
    """Two codes of 4 bits to a byte; the first of them in the low half, or else in the high one."""
    pair = codes.reshape(*codes.shape[:-1], -1, 2).astype(np.uint8)
    return pair[..., low] | pair[..., 1 - low] << 4


def halves_of(codes: Array) -> Array:
    """Codes of 4 bits of groups `[n, groups, group]`: the first half of each in low halves."""
    first, second = np.split(codes.astype(np.uint8), 2, axis=-1)
    return (first | second << 4).reshape(len(codes), -1)


def words_of(codes: Array, shifts: tuple[int, ...], axis: int) -> Array:
    """Eight codes of 4 bits to a word, along an axis."""
    moved = np.moveaxis(codes, axis, -1).astype(np.uint32)
    words = np.zeros((*moved.shape[:-1], moved.shape[-1] // 8), np.uint32)
    for place, shift in enumerate(shifts):
        words |= moved[..., place::8] << np.uint32(shift)
    return np.ascontiguousarray(np.moveaxis(words, -1, axis)).view(np.int32)


# ---- integers


def w8a8(weight: Array, group: int = 0) -> Arrays:
    """int8, a scale for each row of weights."""
    scales = steps(weight, 127)
    return np.rint(weight / scales[:, None]).astype(np.int8), scales


def w4a16(weight: Array, group: int = 128) -> Arrays:
    """Codes of value + 8, of values from -7 to 7."""
    held = in_groups(weight, group)
    scales = steps(held, 7)
    return halves_of(np.rint(held / scales[..., None]) + 8), scales


def with_zeros(weight: Array, group: int = 128, lowest: int = 0) -> Arrays:
    """Codes of 0 to 15, the code of 0 (`lowest` at least) and the scale of each group."""
    held = in_groups(weight, group)
    least = np.minimum(held.min(-1), 0)
    range_ = np.maximum(held.max(-1), 0) - least
    scales = np.where(range_ > 0, range_, 15).astype(weight.dtype) / np.array(15, weight.dtype)
    zeros = np.maximum(np.rint(-least / scales), lowest)
    codes = np.clip(np.rint(held / scales[..., None]) + zeros[..., None], 0, 15)
    return codes.reshape(weight.shape).astype(np.uint8), zeros.astype(np.uint8), scales


def w4a16_awq(weight: Array, group: int = 128) -> Arrays:
    """Words of 8 columns; 8 has to divide n."""
    codes, zeros, scales = with_zeros(weight, group)
    words = (words_of(np.ascontiguousarray(c.T), AWQ_SHIFTS, 1) for c in (codes, zeros))
    return (*words, np.ascontiguousarray(scales.T))


def w4a16_gptq(weight: Array, group: int = 128) -> Arrays:
    """Words of 8 rows; 8 has to divide n and k. Zero points are stored less 1: they are not 0."""
    codes, zeros, scales = with_zeros(weight, group, lowest=1)
    qzeros = words_of(np.ascontiguousarray(zeros.T - 1), GPTQ_SHIFTS, 1)
    g_idx = (np.arange(weight.shape[1]) // group).astype(np.int32)
    qweight = words_of(np.ascontiguousarray(codes.T), GPTQ_SHIFTS, 0)
    return qweight, qzeros, np.ascontiguousarray(scales.T), g_idx


def nf4(weight: Array, group: int = 64) -> Arrays:
    """The nearest of 16 quantiles, of what the largest size of a group leaves."""
    held = in_groups(weight, group)
    absmax = steps(held, 1)
    codes = nearest(held / absmax[..., None], np.array(NF4))
    return bytes_of(codes.reshape(weight.shape), low=1), absmax


def sparse24(weight: Array, group: int = 0) -> Arrays:
    """The two largest of four neighbours."""
    held = in_groups(weight, 4)
    kept = np.sort(np.argsort(-np.abs(held), -1, kind="stable")[..., :2], -1)
    values = np.take_along_axis(held, kept, -1).reshape(len(weight), -1)
    return values, (kept[..., 0] | kept[..., 1] << 2).astype(np.uint8)


def q8_0(weight: Array, group: int = 0) -> Arrays:
    """GGUF: a float16 scale, then 32 bytes."""
    held = in_groups(weight, 32).astype(np.float32)
    scales = steps(held, 127)
    codes = np.rint(held / scales[..., None]).astype(np.int8).view(np.uint8)
    halves = scales.astype(np.float16)[..., None].view(np.uint8)
    return (np.concatenate([halves, codes], -1).reshape(len(weight), -1),)


# ---- floats


def fp8_block(x: Array, block: int = 128, rows: int = 1, format: Minifloat = E4M3) -> Arrays:
    """Codes and scales, one for each `rows x block` elements; the last of each may be smaller."""
    height, width = (-(-s // b) for s, b in zip(x.shape, (rows, block)))
    padded = np.zeros((height * rows, width * block), x.dtype)
    padded[: x.shape[0], : x.shape[1]] = x
    held = padded.reshape(height, rows, width, block)
    scales = steps(held.swapaxes(1, 2).reshape(height, width, -1), format.largest)
    codes = format.encode(held / scales[:, None, :, None], saturate=True)
    return codes.reshape(padded.shape)[: x.shape[0], : x.shape[1]], scales


def mx(weight: Array, group: int = 0) -> Arrays:
    """MXFP4: blocks of 32 that share a power of two."""
    codes, scales = mx_encode(weight, E2M1)
    return bytes_of(codes), scales


def nvfp4(weight: Array, group: int = 0) -> Arrays:
    """Blocks of 16 that share a scale in E4M3."""
    codes, scales, scale = nvfp4_encode(weight)
    return bytes_of(codes), scales, np.asarray(scale, weight.dtype)
