"""Norms of rows: RMSNorm, LayerNorm and softmax, along the last axis."""

from __future__ import annotations

from typing import Any

from stack.hosted import Kernel, op
from stack.ir.types import TensorType
from stack.ops.norm import reference

LONGEST = 1 << 15  # elements of a row that a program can hold in registers


def _row_too_long(x: TensorType, *_: TensorType, **__: Any) -> str:
    return f"rows of {x.shape[-1]}, at most {LONGEST} fit" if int(x.shape[-1]) > LONGEST else ""


def _triton(name: str) -> tuple[Kernel, ...]:
    run = f"stack.ops.norm.rows_triton:{name}"
    dtypes = ("bf16", "f16", "f32")
    return (Kernel("cuda", run, "triton", dtypes, _row_too_long, capturable=True),)


def _over_root_mean_square(np: Any, x: Any, weight: Any, eps: float) -> Any:
    wide = x.astype(np.result_type(x, np.float32))
    scale = 1 / np.sqrt(np.mean(wide * wide, axis=-1, keepdims=True) + eps)
    return (wide * scale * weight.astype(wide.dtype)).astype(x.dtype)


@op(
    "norm.rms_norm",
    rule="... d!, d! -> ... d!",
    reference=reference.rms_norm,
    kernels=_triton("rms_norm"),
    autocast="f32",
)
def rms_norm(np, x, weight, *, eps: float = 1e-6):
    """x divided by its root mean square, times a weight: Zhang and Sennrich, 2019.

    `x [..., d]`, `weight [d]` of one float type, which the result has; sums are in at least f32.
    """
    return _over_root_mean_square(np, x, weight, eps)


@op(
    "norm.add_rms_norm",
    rule="... d!, ... d!, d! -> ... d!, ... d!",
    reference=reference.add_rms_norm,
    kernels=_triton("add_rms_norm"),
    autocast="f32",
)
def add_rms_norm(np, x, residual, weight, *, eps: float = 1e-6):
    """RMSNorm of the sum of x and a residual, as in a transformer block; also returns the sum.

    `x`, `residual [..., d]`, `weight [d]` of one float type, which both results have. The sum is
    rounded to that type before it is normalized.
    """
    added = x + residual
    return _over_root_mean_square(np, added, weight, eps), added


@op(
    "norm.layer_norm",
    rule="... d!, d!, d! -> ... d!",
    reference=reference.layer_norm,
    kernels=_triton("layer_norm"),
    autocast="f32",
)
def layer_norm(np, x, weight, bias, *, eps: float = 1e-5):
    """x scaled to mean 0 and variance 1, times a weight, plus a bias: Ba, Kiros and Hinton, 2016.

    `x [..., d]`, `weight [d]`, `bias [d]` of one float type, which the result has; sums are in at
    least f32.
    """
    wide = x.astype(np.result_type(x, np.float32))
    centered = wide - np.mean(wide, axis=-1, keepdims=True)
    scale = 1 / np.sqrt(np.mean(centered * centered, axis=-1, keepdims=True) + eps)
    scaled = centered * scale * weight.astype(wide.dtype) + bias.astype(wide.dtype)
    return scaled.astype(x.dtype)


@op(
    "norm.softmax",
    rule="... d! -> ... d!",
    reference=reference.softmax,
    kernels=_triton("softmax"),
    autocast="f32",
)
def softmax(np, x):
    """Exponentials divided by their sum, on the last axis of `x [..., d]`; sums in f32 or wider."""
    wide = x.astype(np.result_type(x, np.float32))
    powers = np.exp(wide - np.max(wide, axis=-1, keepdims=True))
    return (powers / np.sum(powers, axis=-1, keepdims=True)).astype(x.dtype)
