"""Quantized matmuls for readers: sums by group or tile, with scales outside of the sums."""

from __future__ import annotations

import numpy as np

from stack.ops.qgemm.formats import (
    E2M1,
    FORMATS,
    MX_BLOCK,
    NF4,
    NV_BLOCK,
    mx_decode,
    nvfp4_decode,
)

Array = np.ndarray
TILE = 64  # elements per partial sum


# ---- 8 bits on both sides


def w8a8(x: Array, weight: Array, x_scale: Array, weight_scale: Array) -> Array:
    """Sums integers first: a sum of k products of 8 bits fits in 32 bits up to k = 131,072."""
    sums = np.zeros((*x.shape[:-1], weight.shape[0]), np.int32)
    for start in range(0, x.shape[-1], TILE):
        part = slice(start, start + TILE)
        sums += x[..., part].astype(np.int32) @ weight[:, part].astype(np.int32).T
    return (sums * x_scale[..., None] * weight_scale).astype(x_scale.dtype)


def w8a8_static(x: Array, weight: Array, x_scale: Array, weight_scale: Array) -> Array:
    """Uses one scale for all rows."""
    codes = np.clip(np.rint(x / x_scale), -127, 127).astype(np.int8)
    return w8a8(codes, weight, np.full(x.shape[:-1], x_scale), weight_scale)


def w8a8_dynamic(x: Array, weight: Array, weight_scale: Array) -> Array:
    """Rounds one row at a time: its absolute maximum becomes 127."""
    rows = x.reshape(-1, x.shape[-1])
    out = np.zeros((len(rows), len(weight)), x.dtype)
    for i, row in enumerate(rows):
        top = np.abs(row).max()
        scale = (top if top > 0 else top + 1) / 127
        out[i] = w8a8_static(row[None], weight, scale, weight_scale)[0]
    return out.reshape(*x.shape[:-1], len(weight))


def fp8(x: Array, weight: Array, x_scale: Array, weight_scale: Array, *, format: str) -> Array:
    """Products of two 4-bit mantissas are exact; only the type of the sums matters."""
    left, right = (FORMATS[format].decode(codes).astype(x_scale.dtype) for codes in (x, weight))
    return left @ right.T * x_scale[..., None] * weight_scale


def fp8_tensor(
    x: Array, weight: Array, x_scale: Array, weight_scale: Array, *, format: str
) -> Array:
    """Uses one scale per side."""
    rows, columns = np.full(x.shape[:-1], x_scale), np.full(len(weight), weight_scale)
    return fp8(x, weight, rows, columns, format=format)


def fp8_block(
    x: Array, weight: Array, x_scale: Array, weight_scale: Array, *, format: str, block: int
) -> Array:
    """Sums one block of k at a time, and scales the sum before adding it in a wide type."""
    out = np.zeros((*x.shape[:-1], len(weight)), x_scale.dtype)
    for i in range(x_scale.shape[-1]):
        place = slice(i * block, (i + 1) * block)
        columns = np.repeat(weight_scale[:, i], block)[: len(weight)]
        part = (x[..., place], weight[:, place], x_scale[..., i], columns)
        out += fp8(*part, format=format)
    return out


# ---- weights in groups


def _by_group(x: Array, groups: int, codes: Array, scales: Array) -> Array:
    """Multiplies x with integer codes one group of k at a time, and each group's sum with the
    group's scale."""
    wide = np.result_type(x.dtype, np.float32)
    size = x.shape[-1] // groups
    out = np.zeros((*x.shape[:-1], len(codes)), wide)
    for group in range(groups):
        place = slice(group * size, (group + 1) * size)
        out += (x[..., place].astype(wide) @ codes[:, place].astype(wide).T) * scales[:, group]
    return out.astype(x.dtype)


def w4a16(x: Array, packed: Array, scales: Array) -> Array:
    """4-bit codes with offset 8; a byte has one code from each half of its group."""
    held = np.split(packed, scales.shape[1], axis=1)
    codes = np.concatenate([half for b in held for half in (b & 15, b >> 4)], axis=1)
    return _by_group(x, scales.shape[1], codes.astype(np.int8) - 8, scales)


def nf4(x: Array, packed: Array, absmax: Array) -> Array:
    """Codes are indices of quantiles of a normal distribution."""
    codes = np.stack([packed >> 4, packed & 15], -1).reshape(len(packed), -1)
    return _by_group(x, absmax.shape[1], np.array(NF4)[codes], absmax)


def w4a16_awq(x: Array, qweight: Array, qzeros: Array, scales: Array) -> Array:
    """A word contains columns 0, 2, 4, 6, 1, 3, 5, 7, from its low end."""
    codes, zeros = (_words(w, 1)[:, _interleaved(w.shape[1])] for w in (qweight, qzeros))
    size = len(codes) // len(zeros)
    return _by_group(x, len(zeros), (codes - np.repeat(zeros, size, 0)).T, scales.T)


def _interleaved(words: int) -> Array:
    """Returns the position of each column in AutoAWQ's order of columns within words."""
    inside = np.array([0, 4, 1, 5, 2, 6, 3, 7])
    return (8 * np.arange(words)[:, None] + inside).reshape(-1)


def _words(words: Array, axis: int) -> Array:
    """Unpacks 4-bit codes of 32-bit words, from the low end, along an axis."""
    parts = [(words.view(np.uint32) >> np.uint32(4 * i) & np.uint32(15)) for i in range(8)]
    return np.stack(parts, axis + 1).reshape(
        [s * 8 if i == axis else s for i, s in enumerate(words.shape)]
    ).astype(np.int32)  # fmt: skip


def w4a16_gptq(x: Array, qweight: Array, qzeros: Array, scales: Array, g_idx: Array) -> Array:
    """Adds one index of k at a time, because each may be in any group."""
    wide = np.result_type(x.dtype, np.float32)
    codes, zeros = _words(qweight, 0), _words(qzeros, 1) + 1
    out = np.zeros((*x.shape[:-1], scales.shape[1]), wide)
    for place, group in enumerate(g_idx):
        out += x[..., place, None] * ((codes[place] - zeros[group]) * scales[group])
    return out.astype(x.dtype)


def mx(x: Array, codes: Array, scales: Array, *, format: str) -> Array:
    """Blocks of 32, scaled by powers of two."""
    held = _halves(codes) if format == E2M1.name else codes
    numbers = FORMATS[format].decode(held)
    powers = mx_decode(np.full_like(held, _code_of_one(format)), scales, FORMATS[format])
    return _by_group(x, scales.shape[1], numbers, powers[:, ::MX_BLOCK])


def _code_of_one(format: str) -> int:
    return FORMATS[format].table.index(1.0)


def nvfp4(x: Array, packed: Array, scales: Array, scale: Array) -> Array:
    """Blocks of 16, scaled by E4M3 numbers and one float for all."""
    ones = nvfp4_decode(np.full((len(packed), 2 * packed.shape[1]), 2), scales, np.float32(1))
    steps = ones[:, ::NV_BLOCK].astype(scale.dtype) * scale
    return _by_group(x, scales.shape[1], E2M1.decode(_halves(packed)), steps)


def _halves(packed: Array) -> Array:
    return np.stack([packed & 15, packed >> 4], -1).reshape(len(packed), -1)


def sparse24(x: Array, values: Array, places: Array) -> Array:
    """Multiplies only the stored weights, with gathered elements of x."""
    wide = np.result_type(x.dtype, np.float32)
    out = np.zeros((*x.shape[:-1], len(values)), wide)
    for row, (numbers, at) in enumerate(zip(values, places)):
        inside = np.stack([at & 3, at >> 2 & 3], -1)
        columns = (4 * np.arange(len(at))[:, None] + inside).reshape(-1)
        out[..., row] = x[..., columns].astype(wide) @ numbers.astype(wide)
    return out.astype(x.dtype)


# ---- blocks of GGUF


def _by_block(x: Array, blocks: Array, size: int, decode: object) -> Array:
    """Multiplies x with packed weights: decodes one row of weights at a time, in blocks of `size`
    bytes, and rounds it to the type of x."""
    wide = np.result_type(x.dtype, np.float32)
    out = np.zeros((*x.shape[:-1], len(blocks)), wide)
    for row, held in enumerate(blocks):
        weights = np.concatenate([decode(b) for b in held.reshape(-1, size)])  # pyright: ignore
        out[..., row] = x.astype(wide) @ weights.astype(x.dtype).astype(wide)
    return out.astype(x.dtype)


def q8_0(x: Array, blocks: Array) -> Array:
    """Blocks of a scale and 32 signed codes."""
    return _by_block(x, blocks, 34, lambda b: _f16(b[:2]) * b[2:].view(np.int8))


def _f16(pair: Array) -> np.float32:
    return np.float32(pair.view(np.float16)[0])


def _q4_k_block(block: Array) -> Array:
    """Groups of 32, with 6-bit scales and minima; from the fifth on, 2 bits are in other bytes."""
    top, lowest, packed, held = _f16(block[:2]), _f16(block[2:4]), block[4:16], block[16:]
    made = np.zeros(256, np.float32)
    for i in range(8):
        if i < 4:
            scale, least = packed[i] & 63, packed[i + 4] & 63
        else:
            scale = packed[i + 4] & 15 | (packed[i - 4] >> 6) << 4
            least = packed[i + 4] >> 4 | (packed[i] >> 6) << 4
        codes = held[32 * (i // 2) : 32 * (i // 2 + 1)] >> (4 * (i % 2)) & 15
        made[32 * i : 32 * i + 32] = top * np.float32(scale) * codes - lowest * np.float32(least)
    return made


def q4_k(x: Array, blocks: Array) -> Array:
    """4-bit codes times a scale, minus a minimum."""
    return _by_block(x, blocks, 144, _q4_k_block)


def _q6_k_block(block: Array) -> Array:
    """Groups of 16; a code is 4 bits from one array and 2 from another, minus 32."""
    low, high, scales, top = block[:128], block[128:192], block[192:208], _f16(block[208:])
    made = np.zeros(256, np.float32)
    for place in range(256):
        side, inside = divmod(place, 128)
        four = low[64 * side + inside % 64] >> (4 * (inside // 64)) & 15
        two = high[32 * side + inside % 32] >> (2 * (inside // 32)) & 3
        step = top * np.float32(scales.view(np.int8)[place // 16])
        made[place] = step * (int(four | two << 4) - 32)
    return made


def q6_k(x: Array, blocks: Array) -> Array:
    """6-bit codes times a scale."""
    return _by_block(x, blocks, 210, _q6_k_block)
