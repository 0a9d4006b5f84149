"""Low-rank adapters for readers."""

from __future__ import annotations

import numpy as np

from stack.ops.qgemm import reference as quantized

Array = np.ndarray


def linear(x: Array, weight: Array, a: Array, b: Array, *, scale: float) -> Array:
    """Computes x a^T first, r numbers per row, and multiplies that with b^T."""
    wide = np.result_type(x.dtype, np.float32)
    x, weight, a, b, kind = *(v.astype(wide) for v in (x, weight, a, b)), x.dtype
    inner = (x @ a.T).astype(kind).astype(wide)
    return (x @ weight.T + scale * (inner @ b.T)).astype(kind)


def multi(x: Array, weight: Array, a: Array, b: Array, adapter: Array, *, scale: float) -> Array:
    """Processes one row at a time, with its own adapter."""
    out = np.zeros((len(x), len(weight)), x.dtype)
    none = np.zeros_like(a[0]), np.zeros_like(b[0])
    for row, which in enumerate(adapter):
        own = (a[which], b[which]) if which >= 0 else none
        out[row] = linear(x[row : row + 1], weight, *own, scale=scale)[0]
    return out


def qlora(x: Array, packed: Array, absmax: Array, a: Array, b: Array, *, scale: float) -> Array:
    """Multiplies weights group by group, and adds the adapter separately."""
    wide = np.result_type(x.dtype, np.float32)
    plain = quantized.nf4(x.astype(wide), packed, absmax.astype(wide))
    nothing = np.zeros((len(packed), x.shape[-1]), x.dtype)
    return (plain + linear(x, nothing, a, b, scale=scale)).astype(x.dtype)
