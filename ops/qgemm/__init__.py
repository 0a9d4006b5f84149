"""Products of quantized operands: 8 bits on both sides, or weights of 4 bits in groups."""

from __future__ import annotations

from typing import Any

from stack.errors import RuleError
from stack.hosted import Kernel, op
from stack.ir.types import TensorType
from stack.ops.qgemm import reference


@op("qgemm.w8a8", rule="... k, n k, ..., n -> ... n", reference=reference.w8a8)
def w8a8(np, x, weight, x_scale, weight_scale):
    """x @ weight.T of 8-bit integers, times a scale for each row and for each column.

    `x [..., k]`, `weight [n, k]` int8; `x_scale [...]`, `weight_scale [n]` of one float type, which
    the result has. Sums are exact, in int32. Source: Dettmers et al., "LLM.int8()", 2022.
    """
    rows = x.reshape(-1, x.shape[-1])
    sums = np.matmul(rows, weight.swapaxes(0, 1), dtype=np.int32).astype(x_scale.dtype)
    scaled = sums * x_scale.reshape(-1, 1) * weight_scale
    return scaled.reshape(*x.shape[:-1], weight.shape[0])


def _not_w4a16(x: TensorType, packed: TensorType, scales: TensorType, **_: Any) -> str:
    return "" if x.dtype is scales.dtype else "two element types"


@op(
    "qgemm.w4a16",
    rule="... k, n b, n g -> ... n",
    reference=reference.w4a16,
    kernels=(
        Kernel(
            "cuda",
            "stack.ops.qgemm.w4a16_triton:w4a16",
            "triton",
            ("bf16", "f16"),
            _not_w4a16,
            capturable=True,
        ),
    ),
)
def w4a16(np, x, packed, scales):
    """x @ weight.T of weights of 4 bits, which share a scale in groups: Frantar et al., GPTQ, 2022.

    `x [..., k]` floats; `packed [n, k / 2]` uint8: an even place of k in the low half of a byte,
    the next in the high one, as code = value + 8; `scales [n, groups]` of the type of x, k / groups
    neighbours share one. Weights are rounded to the type of x; products sum in f32 at least.
    """
    k, (n, groups) = x.shape[-1], scales.shape
    check(k, packed.shape[-1], groups)
    low, high = packed & 15, packed >> 4
    codes = np.concatenate([low[..., None], high[..., None]], axis=-1).reshape(
        n, groups, k // groups
    )
    weight = (codes.astype(x.dtype) - 8) * scales[..., None]
    rows, wide = x.reshape(-1, k), np.result_type(x, np.float32)
    made = np.matmul(rows, weight.reshape(n, k).swapaxes(0, 1), dtype=wide)
    return made.astype(x.dtype).reshape(*x.shape[:-1], n)


def check(k: int, packed: int, groups: int) -> None:
    """Raise RuleError where bytes or groups do not hold k weights."""
    if 2 * packed != k:
        raise RuleError(f"'packed' holds {2 * packed} weights of 4 bits in a row, 'x' has {k}")
    if groups == 0 or k % groups or k // groups % 2:
        raise RuleError(f"'scales' has {groups} groups, which do not share {k} weights evenly")
