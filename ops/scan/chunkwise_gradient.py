"""The gradient of a recurrence of matrix states without erasing, in chunks.

With S the state, as in `chunkwise`, and G its gradient, which is computed from the end,

    G <- diag(w) (G + q o^T)        o: the gradient of a result

the gradients of a step are

        q: S o      k: G v      v: G^T k      log w: everything that passes the step

A pair of steps that passes a step contributes to q dq where it ends and to k dk where it begins.
The first state counts as a beginning and the last state as an end. In a sum from the end of q dq -
k dk, the contributions of pairs of later steps cancel, and only what passes remains. That is the
gradient within a chunk. For pairs that pass the end of the chunk, it is the sum of S G there.
"""

from __future__ import annotations

from typing import Any

from stack.ops.scan.associative import gate_combine
from stack.ops.scan.chunkwise import (
    Steps,
    chunked,
    fitting,
    gates_between,
    pairs_of,
    states_of,
)


def gradient(np: Any, steps: Steps, told: Any, told_last: Any, chunk: int) -> tuple[Any, ...]:
    """Gradients of `q`, `k`, `v`, `decay` per feature, and `first`, with one query head per state.

    `told [b, n, e]` and `told_last [b, d, e]` are the gradients of the results and the last state.
    """
    n = steps.v.shape[1]
    chunk = fitting(chunk, n)
    q, k, v, decay, told = (
        chunked(np, x, chunk) for x in (steps.q[:, 0], steps.k, steps.v, steps.decay, told)
    )
    total = np.cumsum(decay, axis=-2)
    end = total[..., -1:, :]
    row = np.arange(chunk)
    upto = row[:, None] >= row[None, :]
    since, until = np.exp(total), np.exp(end - total)
    left = np.exp(end).swapaxes(-1, -2)

    inputs = np.einsum("bnsd,bnse->bnde", k * until, v)
    states, last = states_of(np, gate_combine, (left, inputs), steps.first)
    asked = np.einsum("bntd,bnte->bnde", q * since, told)
    back = tuple(np.flip(x, axis=1) for x in (left, asked))
    worths, first = states_of(np, gate_combine, back, told_last)
    worths = np.flip(worths, axis=1)

    between = gates_between(np, total, total, upto)
    weights = np.where(upto, np.einsum("bnte,bnse->bnts", told, v), 0.0)
    near = weights[..., None] * between
    dq = np.einsum("bnte,bnde->bntd", told, states) * since
    dq = dq + np.sum(near * k[..., None, :, :], axis=-2)
    dk = np.einsum("bnse,bnde->bnsd", v, worths) * until
    dk = dk + np.sum(near * q[..., :, None, :], axis=-3)
    pairs = pairs_of(np, q[:, None], k, between)[:, 0]
    dv = np.einsum("bnts,bnte->bnse", pairs, told) + np.einsum("bnsd,bnde->bnse", k * until, worths)
    after = np.concatenate([states[:, 1:], last[:, None]], axis=1)
    passing = np.sum(after * worths, axis=-1)
    later = np.flip(np.cumsum(np.flip(q * dq - k * dk, axis=-2), axis=-2), axis=-2)
    ddecay = later + passing[..., None, :]
    whole = (x.reshape(x.shape[0], -1, x.shape[-1])[:, :n] for x in (dq, dk, dv, ddecay))
    return *whole, first
