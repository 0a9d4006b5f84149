"""The selective scan of Mamba: a gated scan per channel and state, whose states are not stored."""

from __future__ import annotations

from typing import Any

import numpy

from stack.errors import RuleError
from stack.hosted import Kernel, op
from stack.ir.types import TensorType
from stack.ops.scan.associative import blocked, gate_combine

Array = numpy.ndarray
LARGEST = 64  # states per channel that a program of the kernel can hold


def algorithm(
    x: Array, dt: Array, a: Array, b: Array, c: Array, skip: Array, first: Array
) -> tuple[Array, Array]:
    """A sequential scan that keeps only the current states of all channels."""
    kind = numpy.result_type(x.dtype, numpy.float32)
    state = first.astype(kind)
    out = numpy.empty_like(x)
    for t in range(x.shape[-2]):
        step, now = dt[..., t, :, None].astype(kind), x[..., t, :, None]
        state = numpy.exp(step * a) * state + step * b[..., t, None, :] * now
        out[..., t, :] = (state * c[..., t, None, :]).sum(-1) + skip * x[..., t, :]
    return out, state.astype(first.dtype)


def _not_fused(*types: TensorType, **_: Any) -> str:
    """Returns why `selective_triton` cannot compute it; "" if it can."""
    m = types[2].shape[-1]
    if not isinstance(m, int) or m > LARGEST or m & (m - 1):
        return f"it takes a power of two of states up to {LARGEST}, not {m}"
    return ""


@op(
    "scan.selective",
    rule="... n~ d, ... n~ d, d m!, ... n~ m!, ... n~ m!, d, ... d m! -> ... n~ d, ... d m!",
    reference=algorithm,
    kernels=(
        Kernel(
            "cuda",
            "stack.ops.scan.selective_triton:selective",
            "fused",
            ("bf16", "f16", "f32"),
            _not_fused,
            capturable=True,
        ),
    ),
    autocast="f32",
)
def selective(np, x, dt, a, b, c, skip, first):
    """Mamba's selective scan: Gu and Dao, 2023. h <- exp(dt a) h + dt b x; y = c h + skip x.

    `x`, `dt` `[..., n, d]`, `a [d, m]` below 0, `b`, `c` `[..., n, m]`, `skip [d]`,
    `first [..., d, m]`. Returns y, and the last h. The decomposition stores all h [..., n, d, m] in
    memory; the hand-written kernel keeps those of one step in registers.
    """
    if x.shape[-2] == 0:
        raise RuleError("'x' has no steps: a recurrence needs at least one")
    wide = np.result_type(x, np.float32)
    held, step = x.astype(wide), dt.astype(wide)
    gates = np.exp(step[..., None] * a.astype(wide))
    inputs = (step * held)[..., None] * b.astype(wide)[..., None, :]
    gates, values = blocked(np, gate_combine, (gates, inputs), axis=-3)
    states = gates * first.astype(wide)[..., None, :, :] + values
    out = np.sum(states * c.astype(wide)[..., None, :], axis=-1) + skip.astype(wide) * held
    return out.astype(x.dtype), states[..., -1, :, :].astype(first.dtype)
