"""Matmuls of 8-bit integers: scales given per row, calibrated for all, or computed at each call.

Derivatives treat codes as constants and flow through scales only. Source: Dettmers et al.,
"LLM.int8()", 2022; Jacob et al., "Quantization and training", 2018.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import stack.ops.qgemm.pack as pack
import stack.ops.qgemm.reference as reference
from stack.errors import RuleError
from stack.hosted import Kernel, op
from stack.ir.types import TensorType

LARGEST = 127
LONGEST = (1 << 31) // LARGEST**2  # a longer sum of products may overflow 32 bits


def lines(x: TensorType, weight: TensorType, *_: TensorType) -> str:
    """Returns why TMA cannot copy rows of the operands or the result; "" if it can."""
    (n, k), size = map(int, weight.shape), 16
    return "" if k % size == 0 and n % 8 == 0 else f"rows are not multiples of {size} bytes"


def kernel(run: str, *dtypes: str, refuses: Callable[..., str] = lines) -> Kernel:
    """Declares the Gluon kernel `run`, "module:function" in this folder, for Hopper only."""
    path = f"stack.ops.qgemm.{run}"
    return Kernel("cuda", path, "gluon", dtypes, refuses, capturable=True, arch="sm_90")


def _scaled(np: Any, x: Any, weight: Any, x_scale: Any, weight_scale: Any) -> Any:
    """Exact sums of integer products of `x [..., k]`, times scales of rows and columns."""
    if x.shape[-1] > LONGEST:
        raise RuleError(f"'x' has sums of {x.shape[-1]} products; more than {LONGEST} may overflow")
    rows, wide = x.reshape(-1, x.shape[-1]), np.result_type(x_scale, np.float32)
    sums = np.matmul(rows, weight.swapaxes(0, 1), dtype=np.int32).astype(wide)
    scaled = sums * x_scale.reshape(-1, 1).astype(wide) * weight_scale.astype(wide)
    return scaled.astype(weight_scale.dtype).reshape(*x.shape[:-1], weight.shape[0])


def _codes(np: Any, x: Any, scale: Any) -> Any:
    """Divides x by its scale and rounds to the nearest integers, clamped to -LARGEST to LARGEST, as
    int8."""
    nearest = np.rint(x / scale)
    return np.maximum(np.minimum(nearest, float(LARGEST)), -float(LARGEST)).astype(np.int8)


@op(
    "qgemm.w8a8",
    rule="... k: i8, n k: i8, ..., n -> ... n",
    reference=reference.w8a8,
    kernels=(kernel("gemm8_gluon:product", "f32"),),
)
def w8a8(np, x, weight, x_scale, weight_scale):
    """x @ weight.T of 8-bit integers, times a scale per row and per column.

    `x [..., k]`, `weight [n, k]` int8; `x_scale [...]`, `weight_scale [n]` of one float type, which
    the result has too. Sums are exact, in int32; raises RuleError if k is too long for that.
    """
    return _scaled(np, x, weight, x_scale, weight_scale)


@op(
    "qgemm.w8a8_static",
    rule="... k, n k: i8, , n -> ... n",
    reference=reference.w8a8_static,
    packs=pack.w8a8_static,
)
def w8a8_static(np, x, weight, x_scale, weight_scale):
    """x @ weight.T with x rounded to 8 bits by a calibrated scale.

    `x [..., k]` floats; `weight [n, k]` int8; `x_scale []`, `weight_scale [n]` of the type of x.
    Numbers of more than 127 scales saturate at 127.
    """
    wide = np.result_type(x, np.float32)
    scale = x_scale.astype(wide)
    codes = _codes(np, x.astype(wide), scale)
    return _scaled(np, codes, weight, np.broadcast_to(scale, x.shape[:-1]), weight_scale)


@op(
    "qgemm.w8a8_dynamic",
    rule="... k, n k: i8, n -> ... n",
    reference=reference.w8a8_dynamic,
    packs=pack.w8a8,
    kernels=(kernel("w8a8_triton:w8a8_dynamic", "f32", "bf16", "f16"),),
)
def w8a8_dynamic(np, x, weight, weight_scale):
    """x @ weight.T with each row of x rounded to 8 bits by its own absolute maximum.

    `x [..., k]` floats; `weight [n, k]` int8; `weight_scale [n]` of the type of x. A row of zeros
    results in zeros.
    """
    x = x.astype(np.result_type(x, np.float32))
    top = np.max(np.abs(x), axis=-1)
    scales = np.where(top > 0.0, top, 1.0) / float(LARGEST)
    return _scaled(np, _codes(np, x, scales[..., None]), weight, scales, weight_scale)
