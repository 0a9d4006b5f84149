"""Scans: running sums, segmented sums, gated recurrences, and scans of any associative function."""

from __future__ import annotations

from stack.hosted import Kernel, op
from stack.ops.scan import reference
from stack.ops.scan.associative import associative, blocked, gate_combine, segment_combine
from stack.ops.scan.family import delta, gla, gla_gradient, linear_attention, retention, rwkv7, ssd
from stack.ops.scan.mamba import selective

__all__ = [
    "associative",
    "delta",
    "exclusive",
    "gated",
    "gated_gradient",
    "gla",
    "gla_gradient",
    "inclusive",
    "linear_attention",
    "retention",
    "rwkv7",
    "segmented",
    "selective",
    "ssd",
]
_DTYPES = ("bf16", "f16", "f32")


def _triton(run: str, share: float) -> tuple[Kernel, ...]:
    """Declares a CUDA kernel; `share` is its fraction of the rate of a copy, on an H200."""
    name, where = run.partition("_")[0], f"stack.ops.scan.{run}"
    return (Kernel("cuda", where, name, _DTYPES, share=share, capturable=True),)


@op(
    "scan.inclusive",
    rule="... n~ -> ... n~",
    reference=reference.inclusive,
    kernels=_triton("lookback_triton:inclusive", 0.9),
    autocast="f32",
)
def inclusive(np, x):
    """Running sums along the last axis of `x [..., n]`, of floats, computed in at least f32."""
    wide = x.astype(np.result_type(x, np.float32))
    return np.cumsum(wide, axis=-1).astype(x.dtype)


@op("scan.exclusive", rule="... n~ -> ... n~", reference=reference.exclusive, autocast="f32")
def exclusive(np, x):
    """Sums of the elements before each one of `x [..., n]`, of floats, computed in at least f32."""
    wide = x.astype(np.result_type(x, np.float32))
    sums = np.cumsum(wide, axis=-1)
    nothing = np.full((*x.shape[:-1], 1), 0.0, wide.dtype)
    return np.concatenate([nothing, sums], axis=-1)[..., :-1].astype(x.dtype)


@op(
    "scan.segmented",
    rule="... n~, ... n~: int -> ... n~",
    reference=reference.segmented,
    autocast="f32",
)
def segmented(np, x, starts):
    """Running sums of `x [..., n]` that restart at each nonzero integer in `starts [..., n]`.

    Source: Blelloch, "Prefix sums and their applications", 1990.
    """
    wide = x.astype(np.result_type(x, np.float32))
    return blocked(np, segment_combine, (starts != 0, wide))[1].astype(x.dtype)


@op(
    "scan.gated_gradient",
    rule="... n~ d, ... n~ d, ... d, ... n~ d, ... n~ d -> ... n~ d, ... n~ d, ... d",
    reference=reference.gated_gradient,
    kernels=_triton("carried_triton:gated_gradient", 0.8),
)
def gated_gradient(np, gate, x, first, out, told):
    """The gradients of `gated`: the same recurrence backwards, with the gate of the next step."""
    wide = np.result_type(gate, np.float32)
    held, given = gate.astype(wide), told.astype(wide)
    nothing = np.full((*gate.shape[:-2], 1, gate.shape[-1]), 0.0, wide)
    following = np.concatenate([held, nothing], axis=-2)[..., 1:, :]
    back = (np.flip(following, axis=-2), np.flip(given, axis=-2))
    to_x = np.flip(blocked(np, gate_combine, back, axis=-2)[1], axis=-2)
    before = np.concatenate([first[..., None, :], out], axis=-2)[..., :-1, :].astype(wide)
    to_first = np.sum((held * to_x)[..., :1, :], axis=-2)
    return (to_x * before).astype(gate.dtype), to_x.astype(x.dtype), to_first.astype(first.dtype)


@op(
    "scan.gated",
    rule="... n~ d, ... n~ d, ... d -> ... n~ d",
    reference=reference.gated,
    kernels=_triton("carried_triton:gated", 0.85),
    gradient=gated_gradient,
    autocast="f32",
)
def gated(np, gate, x, first):
    """h[t] = gate[t] h[t-1] + x[t] along the second-to-last axis, from h[-1] = first.

    `gate [..., n, d]`, `x [..., n, d]`, `first [..., d]` of one float type; h is carried in at
    least f32. Source: Martin and Cundy, "Parallelizing linear recurrent neural nets", 2018.
    """
    wide = np.result_type(gate, np.float32)
    gates, values = blocked(np, gate_combine, (gate.astype(wide), x.astype(wide)), axis=-2)
    return (gates * first.astype(wide)[..., None, :] + values).astype(x.dtype)
