"""Storage layouts of quantized weights: a function per layout, from storage to numbers.

Written as decompositions, for NumPy and for values of the IR. Each returns `weight [n, k]`, or a
part of the conversion.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from stack.errors import RuleError
from stack.ops.qgemm.formats import FORMATS, NF4, Minifloat, exponents

AWQ_SHIFTS = (0, 16, 4, 20, 8, 24, 12, 28)  # of columns 0, 1, ... in a 32-bit word
GPTQ_SHIFTS = tuple(range(0, 32, 4))
SCALES = exponents()


def check(name: str, found: Any, expected: Any, why: str) -> None:
    """Raise RuleError with the argument's name if a size is not what the layout requires."""
    if found != expected:
        raise RuleError(f"{name!r} has a size of {found}, not {expected}: {why}")


def check_weights(name: str, held: Any, k: Any) -> None:
    """Raise RuleError if rows of an argument do not have one weight per element of x."""
    if held != k:
        raise RuleError(f"{name!r} has {held} weights in a row, 'x' has {k}")


def check_groups(name: str, groups: Any, k: Any, multiple: int = 1) -> None:
    """Raise RuleError if the groups do not share k elements evenly."""
    if groups == 0 or k % groups or k // groups % multiple:
        each = f", in multiples of {multiple}" if multiple > 1 else ""
        raise RuleError(
            f"{name!r} has {groups} groups, which do not share {k} weights evenly{each}"
        )


def check_pairs(packed: Any, name: str, scales: Any, k: Any) -> None:
    """Raise RuleError if packed bytes, and groups with one scale each, do not cover k weights."""
    check_weights("packed", 2 * packed.shape[-1], k)
    check_groups(name, scales.shape[-1], k, multiple=2)


def format_named(name: str) -> Minifloat:
    """A format of `FORMATS`. Raises RuleError that lists them."""
    if name not in FORMATS:
        raise RuleError(f"'format' must be one of {', '.join(FORMATS)}, not {name!r}")
    return FORMATS[name]


# ---- bits


def fields(np: Any, words: Any, shifts: Sequence[int], bits: int, axis: int = -1) -> Any:
    """Unpacks words along an axis: each becomes its fields of `bits` bits, in order of `shifts`."""
    at = axis % words.ndim
    around = (slice(None),) * (at + 1)
    parts = [((words >> s) & ((1 << bits) - 1))[*around, None] for s in shifts]
    shape = [s * len(shifts) if i == at else s for i, s in enumerate(words.shape)]
    return np.concatenate(parts, axis=at + 1).reshape(shape)


def nibbles(np: Any, packed: Any) -> Any:
    """Unpacks 4-bit codes, the low half of each byte first."""
    return fields(np, packed, (0, 4), 4)


def half(np: Any, pair: Any) -> Any:
    """Decodes float16 from two bytes, low byte first: `[..., 2]` to `[...]`."""
    low, high = pair[..., 0].astype(np.uint16), pair[..., 1].astype(np.uint16)
    return (low | (high << 8)).view(np.float16)


def looked_up(np: Any, values: Sequence[float], codes: Any, dtype: Any) -> Any:
    """Returns the number `values[code]` for each code, in type `dtype`."""
    return np.take(np.asarray(values, dtype), codes.astype(np.int32))


# ---- groups


def grouped(np: Any, numbers: Any, scales: Any) -> Any:
    """`numbers [n, k]` times `scales [n, groups]`, one for every k / groups neighbours."""
    n, groups = scales.shape
    k = numbers.shape[1]
    return (numbers.reshape(n, groups, k // groups) * scales[..., None]).reshape(n, k)


def repeated(np: Any, scales: Any, block: int, size: Any, axis: int) -> Any:
    """Repeats scales of blocks along an axis to `size` elements; the last block may be partial."""
    at = axis % scales.ndim
    before, own, after = scales.shape[:at], scales.shape[at], scales.shape[at + 1 :]
    wide = np.broadcast_to(scales.reshape(*before, own, 1, *after), (*before, own, block, *after))
    return wide.reshape(*before, own * block, *after)[(slice(None),) * at + (slice(0, size),)]


# ---- layouts


def int4(np: Any, packed: Any, scales: Any) -> Any:
    """Codes are value + 8, in groups along k; the first half of a group is in low half-bytes."""
    n, groups = scales.shape
    held = packed.reshape(n, groups, packed.shape[1] // groups)
    codes = np.concatenate([held & 15, held >> 4], axis=-1)
    values = (codes.astype(scales.dtype) - 8) * scales[..., None]
    return values.reshape(n, 2 * packed.shape[1])


def awq(np: Any, qweight: Any, qzeros: Any, scales: Any) -> Any:
    """AutoAWQ's GEMM layout: words of 8 columns, `[k, n / 8]`; one zero point per group."""
    k, n = qweight.shape[0], scales.shape[1]
    codes = fields(np, qweight, AWQ_SHIFTS, 4).astype(scales.dtype)
    zeros = fields(np, qzeros, AWQ_SHIFTS, 4).astype(scales.dtype)
    groups = scales.shape[0]
    centred = codes.reshape(groups, k // groups, n) - zeros[:, None]
    return (centred * scales[:, None]).reshape(k, n).swapaxes(0, 1)


def gptq(np: Any, qweight: Any, qzeros: Any, scales: Any, g_idx: Any) -> Any:
    """AutoGPTQ's layout: words of 8 rows, `[k / 8, n]`; zero points minus 1; a group per k."""
    codes = fields(np, qweight, GPTQ_SHIFTS, 4, axis=0).astype(scales.dtype)
    zeros = fields(np, qzeros, GPTQ_SHIFTS, 4).astype(scales.dtype) + 1
    centred = codes - np.take(zeros, g_idx, axis=0)
    return (centred * np.take(scales, g_idx, axis=0)).swapaxes(0, 1)


def nf4(np: Any, packed: Any, absmax: Any) -> Any:
    """bitsandbytes' NF4: 16 quantiles of a normal distribution, the high half of a byte first."""
    codes = fields(np, packed, (4, 0), 4)
    return grouped(np, looked_up(np, NF4, codes, absmax.dtype), absmax)


def minifloat(np: Any, codes: Any, format: str, dtype: Any) -> Any:
    """Decodes codes of a narrow float format; if it has 4 bits, each byte has two codes, the first
    in the low half."""
    made = format_named(format)
    codes = nibbles(np, codes) if made.bits == 4 else codes
    return looked_up(np, made.table, codes, dtype)


def mx(np: Any, codes: Any, scales: Any, format: str, dtype: Any) -> Any:
    """OCP microscaling: blocks of 32 share a power of two."""
    powers = looked_up(np, SCALES, scales, dtype)
    return grouped(np, minifloat(np, codes, format, dtype), powers)


def nvfp4(np: Any, packed: Any, scales: Any, scale: Any) -> Any:
    """Blocks of 16 share an E4M3 scale, and all blocks share one float."""
    shared = looked_up(np, FORMATS["e4m3"].table, scales, scale.dtype) * scale
    return grouped(np, minifloat(np, packed, "e2m1", scale.dtype), shared)


def sparse24(np: Any, values: Any, places: Any) -> Any:
    """Two of every four neighbours are stored; `places` has both indices, 2 bits each."""
    n, quads = places.shape
    at = np.arange(4, dtype=np.int32)
    kept = values.reshape(n, quads, 2)
    first, second = (
        (((places >> shift) & 3).astype(np.int32)[..., None] == at).astype(values.dtype)
        for shift in (0, 2)
    )
    return (first * kept[..., :1] + second * kept[..., 1:]).reshape(n, 4 * quads)


def q8_0(np: Any, blocks: Any) -> Any:
    """GGUF Q8_0: blocks of 34 bytes, a scale and 32 signed bytes."""
    held = blocks.reshape(blocks.shape[0], -1, 34)
    scale = half(np, held[..., :2]).astype(np.float32)
    codes = held[..., 2:].view(np.int8).astype(np.float32)
    return (codes * scale[..., None]).reshape(blocks.shape[0], -1)


def q4_k(np: Any, blocks: Any) -> Any:
    """GGUF Q4_K: blocks of 144 bytes, 256 weights in 8 groups, with 6-bit scales and minima."""
    n = blocks.shape[0]
    held = blocks.reshape(n, -1, 144)
    top = half(np, held[..., :2]).astype(np.float32)
    lowest = half(np, held[..., 2:4]).astype(np.float32)
    scales, minima, rest = held[..., 4:8], held[..., 8:12], held[..., 12:16]
    scales = np.concatenate([scales & 63, (rest & 15) | ((scales >> 2) & 48)], axis=-1)
    minima = np.concatenate([minima & 63, (rest >> 4) | ((minima >> 2) & 48)], axis=-1)
    bytes_ = held[..., 16:].reshape(n, -1, 4, 32)
    codes = np.concatenate([bytes_ & 15, bytes_ >> 4], axis=-1).reshape(n, -1, 8, 32)
    step = top[..., None] * scales.astype(np.float32)
    least = lowest[..., None] * minima.astype(np.float32)
    return (step[..., None] * codes.astype(np.float32) - least[..., None]).reshape(n, -1)


def q6_k(np: Any, blocks: Any) -> Any:
    """GGUF Q6_K: blocks of 210 bytes, 256 weights in 16 groups, with 8-bit scales."""
    n = blocks.shape[0]
    held = blocks.reshape(n, -1, 210)
    low = held[..., :128].reshape(n, -1, 2, 64)
    high = held[..., 128:192].reshape(n, -1, 2, 32)
    low = np.concatenate([low & 15, low >> 4], axis=-1)
    high = np.concatenate([(high >> s) & 3 for s in (0, 2, 4, 6)], axis=-1)
    codes = (low | (high << 4)).astype(np.float32) - 32
    scales = held[..., 192:208].view(np.int8).astype(np.float32)
    step = half(np, held[..., 208:]).astype(np.float32)[..., None] * scales
    return (codes.reshape(n, -1, 16, 16) * step[..., None]).reshape(n, -1)


# ---- the matmul


def product(np: Any, x: Any, weight: Any) -> Any:
    """x @ weight.T, with weights rounded to the type of x, and sums in at least f32."""
    rows, wide = x.reshape(-1, x.shape[-1]), np.result_type(x, np.float32)
    made = np.matmul(rows, weight.astype(x.dtype).swapaxes(0, 1), dtype=wide)
    return made.astype(x.dtype).reshape(*x.shape[:-1], weight.shape[0])
