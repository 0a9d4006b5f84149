"""Products of 8-bit integers: scales known for each row, known for all, or found at each call.

Codes are constants to a derivative: what flows through scales is all that does. Source: Dettmers et
al., "LLM.int8()", 2022; Jacob et al., "Quantization and training", 2018.
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
LONGEST = (1 << 31) // LARGEST**2  # a longer sum of products may leave 32 bits


def lines(x: TensorType, weight: TensorType, *_: TensorType) -> str:
    """Why the memory accelerator cannot move rows of a product of bytes, or ""."""
    (n, k), size = map(int, weight.shape), 16
    return "" if k % size == 0 and n % 8 == 0 else f"rows are not whole lines of {size} bytes"


def kernel(run: str, *dtypes: str, refuses: Callable[..., str] = lines) -> Kernel:
    """Code in Gluon, for Hopper only."""
    path = f"stack.ops.qgemm.{run}"
    return Kernel("cuda", path, "gluon", dtypes, refuses, capturable=True, arch="sm_90")


def _scaled(np: Any, x: Any, weight: Any, x_scale: Any, weight_scale: Any) -> Any:
    """Sums of products of integers `x [..., k]`, exact, times scales of rows and columns."""
    if x.shape[-1] > LONGEST:
        raise RuleError(f"'x' has {x.shape[-1]} products to a sum; more than {LONGEST} overflow")
    rows, wide = x.reshape(-1, x.shape[-1]), np.result_type(x_scale, np.float32)
    sums = np.matmul(rows, weight.swapaxes(0, 1), dtype=np.int32).astype(wide)
    scaled = sums * x_scale.reshape(-1, 1).astype(wide) * weight_scale.astype(wide)
    return scaled.astype(weight_scale.dtype).reshape(*x.shape[:-1], weight.shape[0])


def _codes(np: Any, x: Any, scale: Any) -> Any:
    """The nearest integers, of those that 8 bits have."""
    nearest = np.rint(x / scale)
    return np.maximum(np.minimum(nearest, float(LARGEST)), -float(LARGEST)).astype(np.int8)


@op(
    "qgemm.w8a8",
    rule="... k: i8, n k: i8, ..., n -> ... n",
    reference=reference.w8a8,
    kernels=(kernel("gemm8_gluon:product", "f32"),),
)
def w8a8(np, x, weight, x_scale, weight_scale):
    """x @ weight.T of 8-bit integers, times a scale for each row and for each column.

    `x [..., k]`, `weight [n, k]` int8; `x_scale [...]`, `weight_scale [n]` of one float type, which
    the result has. Sums are exact, in int32; RuleError where k is too long for that.
    """
    return _scaled(np, x, weight, x_scale, weight_scale)


@op(
    "qgemm.w8a8_static",
    rule="... k, n k: i8, , n -> ... n",
    reference=reference.w8a8_static,
    packs=pack.w8a8_static,
)
def w8a8_static(np, x, weight, x_scale, weight_scale):
    """x @ weight.T where x is rounded to 8 bits by a scale that was calibrated before.

    `x [..., k]` floats; `weight [n, k]` int8; `x_scale []`, `weight_scale [n]` of the type of x.
    Numbers beyond 127 scales become 127.
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
    """x @ weight.T where each row of x is rounded to 8 bits by its own largest size.

    `x [..., k]` floats; `weight [n, k]` int8; `weight_scale [n]` of the type of x. A row of zeros
    gives zeros.
    """
    x = x.astype(np.result_type(x, np.float32))
    top = np.max(np.abs(x), axis=-1)
    scales = np.where(top > 0.0, top, 1.0) / float(LARGEST)
    return _scaled(np, _codes(np, x, scales[..., None]), weight, scales, weight_scale)
