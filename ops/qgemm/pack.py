"""Packs weights for an operator, each rounded to the nearest value: `weight [n, k]` in NumPy.

Each operator has a function `(weight, group) -> operands after x`; `group` neighbours along k share
a scale, if the layout allows a choice. It raises ValueError if blocks do not divide k. A `Grid` is
for layouts whose scale is known before the numbers are rounded, so that GPTQ can round them one by
one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

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
    """Reshapes `[n, k]` to `[n, groups, group]`. Raises ValueError if groups do not divide k."""
    n, k = weight.shape
    if group < 1 or k % group:
        raise ValueError(f"groups of {group} do not divide rows of {k} weights")
    return weight.reshape(n, k // group, group)


def steps(weight: Array, largest: float) -> Array:
    """The scale that maps the absolute maximum along the last axis to `largest`; 1 if all are 0."""
    top = np.abs(weight).max(-1)
    return np.where(top > 0, top, largest).astype(weight.dtype) / np.array(largest, weight.dtype)


def bytes_of(codes: Array, low: int = 0) -> Array:
    """Packs two 4-bit codes per byte: the first in the low half, or the high one if low=1."""
    pair = codes.reshape(*codes.shape[:-1], -1, 2).astype(np.uint8)
    return pair[..., low] | pair[..., 1 - low] << 4


def halves_of(codes: Array) -> Array:
    """Packs 4-bit codes of groups `[n, groups, group]`: the first half of a group in low halves."""
    first, second = np.split(codes.astype(np.uint8), 2, axis=-1)
    return (first | second << 4).reshape(len(codes), -1)


def words_of(codes: Array, shifts: tuple[int, ...], axis: int) -> Array:
    """Packs eight adjacent 4-bit codes along an axis to one int32 word; code i of a word is shifted
    left by `shifts[i]` bits."""
    moved = np.moveaxis(codes, axis, -1).astype(np.uint32)
    words = np.zeros((*moved.shape[:-1], moved.shape[-1] // 8), np.uint32)
    for place, shift in enumerate(shifts):
        words |= moved[..., place::8] << np.uint32(shift)
    return np.ascontiguousarray(np.moveaxis(words, -1, axis)).view(np.int32)


# ---- grids


@dataclass(frozen=True)
class Grid:
    """The representable values of a group of weights.

    Attributes:
        fit: `weights [..., group] -> scales [...]` and anything else that the group shares.
        encode: `(weights, *shared) -> codes` of the nearest values.
        decode: `(codes, *shared) -> weights`.
        store: `(codes [n, k], *shared [n, groups]) -> operands after x`.
        is_whole: True if a whole row is one group.
    """

    fit: Callable[[Array], Arrays]
    encode: Callable[..., Array]
    decode: Callable[..., Array]
    store: Callable[..., Arrays]
    is_whole: bool = False

    def __call__(self, weight: Array, group: int = 128) -> Arrays:
        held = in_groups(weight, self.group(weight.shape[1], group))
        shared = self.fit(held)
        codes = self.encode(held, *(a[..., None] for a in shared))
        return self.store(codes.reshape(weight.shape), *shared)

    def group(self, k: int, asked: int) -> int:
        """The number of weights that share a scale."""
        return k if self.is_whole else asked


def _integers(lowest: int, largest: int, store: Callable[..., Arrays], **options: Any) -> Grid:
    """Returns a grid of integer codes from `lowest` to `largest`, times a scale per group that maps
    the group's absolute maximum to `largest`."""
    return Grid(
        lambda held: (steps(held, largest),),
        lambda x, scale: np.clip(np.rint(x / scale), lowest, largest),
        lambda codes, scale: codes * scale,
        store,
        **options,
    )


def _from_zero(store: Callable[..., Arrays], lowest: int = 0) -> Grid:
    """Returns a grid of codes from 0 to 15, with a scale and a zero point of at least `lowest` per
    group: weight = (code - zero point) * scale."""

    def fit(held: Array) -> Arrays:
        least = np.minimum(held.min(-1), 0)
        range_ = np.maximum(held.max(-1), 0) - least
        scales = np.where(range_ > 0, range_, 15).astype(held.dtype) / np.array(15, held.dtype)
        return scales, np.maximum(np.rint(-least / scales), lowest)

    return Grid(
        fit,
        lambda x, scale, zero: np.clip(np.rint(x / scale) + zero, 0, 15),
        lambda codes, scale, zero: (codes - zero) * scale,
        store,
    )


def _in_halves(codes: Array, scales: Array) -> Arrays:
    return halves_of(codes.reshape(*scales.shape, -1) + 8), scales


def _in_rows(codes: Array, scales: Array) -> Arrays:
    return codes.astype(np.int8), scales[:, 0]


def _in_awq_words(codes: Array, scales: Array, zeros: Array) -> Arrays:
    words = (words_of(c.T, AWQ_SHIFTS, 1) for c in (codes, zeros))
    return (*words, np.ascontiguousarray(scales.T))


def _in_gptq_words(codes: Array, scales: Array, zeros: Array) -> Arrays:
    g_idx = np.arange(codes.shape[1]) // (codes.shape[1] // scales.shape[1])
    return (
        words_of(codes.T, GPTQ_SHIFTS, 0),
        words_of(zeros.T - 1, GPTQ_SHIFTS, 1),
        np.ascontiguousarray(scales.T),
        g_idx.astype(np.int32),
    )


def _in_nf4(codes: Array, absmax: Array) -> Arrays:
    return bytes_of(codes, low=1), absmax


# int8, one scale per row of weights
w8a8 = _integers(-127, 127, _in_rows, is_whole=True)
# stored as value + 8; rounded to nearest, values start at -7
w4a16 = _integers(-8, 7, _in_halves)
# words of 8 columns; 8 must divide n
w4a16_awq = _from_zero(_in_awq_words)
# words of 8 rows; 8 must divide n and k. Zero points are stored minus 1, so they are not 0
w4a16_gptq = _from_zero(_in_gptq_words, lowest=1)
# the nearest of 16 quantiles, scaled by the group's absolute maximum
nf4 = Grid(
    lambda held: (steps(held, 1),),
    lambda x, absmax: nearest(x / absmax, np.array(NF4)),
    lambda codes, absmax: np.array(NF4)[codes] * absmax,
    _in_nf4,
)


def w8a8_static(weight: Array, group: int = 0, x_scale: float = 0.0) -> Arrays:
    """int8, with the calibrated scale of x. Raises ValueError if there is none."""
    if not x_scale:
        raise ValueError("'x_scale' needs a sample of x; calibrate=minmax computes it")
    codes, scales = w8a8(weight, group)
    return codes, np.asarray(x_scale, weight.dtype), scales


# ---- others


def sparse24(weight: Array, group: int = 0) -> Arrays:
    """Keeps the two largest of every four neighbours."""
    held = in_groups(weight, 4)
    kept = np.sort(np.argsort(-np.abs(held), -1, kind="stable")[..., :2], -1)
    values = np.take_along_axis(held, kept, -1).reshape(len(weight), -1)
    return values, (kept[..., 0] | kept[..., 1] << 2).astype(np.uint8)


def q8_0(weight: Array, group: int = 0) -> Arrays:
    """GGUF's Q8_0: a float16 scale, then 32 bytes."""
    held = in_groups(weight, 32).astype(np.float32)
    scales = steps(held, 127)
    codes = np.rint(held / scales[..., None]).astype(np.int8).view(np.uint8)
    halves = scales.astype(np.float16)[..., None].view(np.uint8)
    return (np.concatenate([halves, codes], -1).reshape(len(weight), -1),)


# ---- floats


def fp8_block(x: Array, block: int = 128, rows: int = 1, format: Minifloat = E4M3) -> Arrays:
    """Returns codes and scales, one per `rows x block` elements; the last blocks may be smaller."""
    height, width = (-(-s // b) for s, b in zip(x.shape, (rows, block)))
    padded = np.zeros((height * rows, width * block), x.dtype)
    padded[: x.shape[0], : x.shape[1]] = x
    held = padded.reshape(height, rows, width, block)
    scales = steps(held.swapaxes(1, 2).reshape(height, width, -1), format.largest)
    codes = format.encode(held / scales[:, None, :, None], saturate=True)
    return codes.reshape(padded.shape)[: x.shape[0], : x.shape[1]], scales


def mx(weight: Array, group: int = 0) -> Arrays:
    """MXFP4: blocks of 32 share a power of two."""
    codes, scales = mx_encode(weight, E2M1)
    return bytes_of(codes), scales


def nvfp4(weight: Array, group: int = 0) -> Arrays:
    """Blocks of 16 share a scale in E4M3."""
    codes, scales, scale = nvfp4_encode(weight)
    return bytes_of(codes), scales, np.asarray(scale, weight.dtype)
