"""Classification losses: cross-entropy of logits, and of a linear layer without its logits."""

from __future__ import annotations

from typing import Any

from stack.hosted import Kernel, op
from stack.ir.types import TensorType
from stack.ops.loss import reference

_DTYPES = ("bf16", "f16", "f32")


@op(
    "loss.cross_entropy",
    rule="... v!, ...: int < v or ignore_index -> ...",
    reference=reference.cross_entropy,
    kernels=(
        Kernel(
            "cuda", "stack.ops.loss.rows_triton:cross_entropy", "triton", _DTYPES, capturable=True
        ),
    ),
    autocast="f32",
)
def cross_entropy(np, logits, target, *, ignore_index: int = -100):
    """-log softmax(logits)[target] of each row; 0 if the target is `ignore_index`.

    `logits [..., v]` of floats, `target [...]` of integers from 0 to v - 1; the losses are at least
    f32.
    """
    wide = logits.astype(np.result_type(logits, np.float32))
    return _losses(np, wide, target, ignore_index)


def _not_linear(x: TensorType, weight: TensorType, *_: TensorType, **__: Any) -> str:
    """Returns why `linear_triton` cannot compute it; "" if it can."""
    if x.shape[-1] % 8:  # pyright: ignore[reportOperatorIssue]
        return f"it takes a multiple of 8 features, not {x.shape[-1]}"
    return "" if x.dtype is weight.dtype else "it takes one element type"


@op(
    "loss.linear_cross_entropy",
    rule="... k, v! k, ...: int < v or ignore_index -> ...",
    reference=reference.linear_cross_entropy,
    kernels=(
        Kernel(
            "cuda",
            "stack.ops.loss.linear_triton:linear_cross_entropy",
            "triton",
            ("bf16", "f16"),
            _not_linear,
            share=0.5,  # for 4,096 rows, 32,000 classes on an H200: 2.84 ms
            capturable=True,
        ),
    ),
    autocast="low",
)
def linear_cross_entropy(np, x, weight, target, *, ignore_index: int = -100):
    """Cross-entropy of the logits `x @ weight.T`: Wijmans et al., "Cut Your Losses", 2024.

    `x [..., k]`, `weight [v, k]` of one float type, `target [...]` of integers from 0 to v - 1;
    sums and losses are in at least f32.
    """
    rows = x.reshape(-1, x.shape[-1])
    wide = np.result_type(x, np.float32)
    logits = np.matmul(rows, weight.swapaxes(0, 1), dtype=wide)
    return _losses(np, logits, target.reshape(-1), ignore_index).reshape(target.shape)


def _losses(np, logits, target, ignore_index: int):
    top = np.max(logits, axis=-1, keepdims=True)
    total = np.log(np.sum(np.exp(logits - top), axis=-1)) + top[..., 0]
    is_used = target != ignore_index
    index = np.where(is_used, target, 0)
    picked = np.take_along_axis(logits, index[..., None], axis=-1)[..., 0]
    return np.where(is_used, total - picked, 0.0)
