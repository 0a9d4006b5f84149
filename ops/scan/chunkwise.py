"""Linear recurrences of matrix states, in chunks: one family, one algebra.

A state S [d, e] maps keys to values. A step is

    S <- diag(w) S + a (b^T S) + k v^T          out = q^T S

with w = exp(log decay). Its members:

        linear attention   w = 1                                      Katharopoulos et al., 2020
        RetNet             w is one number per head                   Sun et al., 2023
        Mamba-2 (SSD)      w is one number per head and step          Dao and Gu, 2024
        GLA                w is one number per key feature            Yang et al., 2023
    (Gated) DeltaNet   a = -beta k, b = w k, k v^T times beta     Yang et al., 2024
    RWKV-7             a, b given                                 Peng et al., 2025

Steps are affine maps of S. The composition of C of them is again an affine map:

    S' = T S + X        (T1, X1) then (T2, X2)  =  (T2 T1, T2 X1 + X2)

Within a chunk, with c[t] the sum of log decays up to step t and u[t] = b[t]^T S[t-1]:

    u = M (B~ S + (b k) v)      out = Q~ S + (q a) u + (q k) v
    T = diag(exp(c[C])) + A^ M B~        X = A^ M (b k) v + K^ v

    Q~ = q exp(c[t])     B~ = b exp(c[t-1])     A^, K^ = (a, k) exp(c[C] - c[s]), transposed
    (q k)[t, s] = sum_d q[t] k[s] exp(c[t] - c[s]) for s <= t, and so (q a)
    (b k)[t, s] = sum_d b[t] k[s] exp(c[t-1] - c[s]) for s < t, and so (b a)
    M = (I - (b a))^-1, of a triangular matrix with ones on its diagonal

No exponent is positive if no decay is above 1, so nothing overflows, whatever the gates. Without a
and b, M is not needed and T is diagonal. The states at the starts of chunks are a scan of (T, X).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from stack.errors import RuleError
from stack.ops.scan.associative import Values, blocked, gate_combine

BASE = 16  # largest triangle that is inverted as a product of few terms, which stay small


@dataclass(frozen=True)
class Steps:
    """Operands of a recurrence, [b, n, ...] with n steps.

    `q [b, r, n, d]`: r heads read one state. `k [b, n, d]`, `v [b, n, e]`, `decay [b, n, d or 1]`
    the logarithm of w, `erase [b, n, d]` and `read [b, n, d]` (a and b) or None, `first [b, d, e]`.
    """

    q: Any
    k: Any
    v: Any
    decay: Any
    first: Any
    erase: Any = None
    read: Any = None


def chunkwise(np: Any, steps: Steps, chunk: int) -> tuple[Any, Any]:
    """Returns results [b, r, n, e], and the last state [b, d, e]; needs at least one step.

    Raises RuleError for a chunk that is not a power of two, or if the length is not known.
    """
    n = steps.v.shape[1]
    chunk = fitting(chunk, n)
    q = chunked(np, steps.q, chunk)
    k, v, decay = (chunked(np, x, chunk) for x in (steps.k, steps.v, steps.decay))
    total = np.cumsum(decay, axis=-2)
    end = total[..., -1:, :]
    row = np.arange(chunk)
    upto, before = row[:, None] >= row[None, :], row[:, None] > row[None, :]

    out = np.einsum("brnts,bnse->brnte", _pairs(np, q, k, total, total, upto), v)
    inputs = np.einsum("bnsd,bnse->bnde", k * np.exp(end - total), v)
    steps_of_chunks = np.exp(end).swapaxes(-1, -2)  # T, a diagonal
    if steps.erase is None:
        states, last = states_of(np, gate_combine, (steps_of_chunks, inputs), steps.first)
    else:
        a, b = chunked(np, steps.erase, chunk), chunked(np, steps.read, chunk)
        earlier = total - decay
        b_k = _pairs(np, b[:, None], k, earlier, total, before)[:, 0]
        b_a = _pairs(np, b[:, None], a, earlier, total, before)[:, 0]
        inverse = inverted(np, b_a)
        told = np.matmul(inverse, np.matmul(b_k, v))  # M (b k) v
        reads = np.matmul(inverse, b * np.exp(earlier))  # M B~
        erased = (a * np.exp(end - total)).swapaxes(-1, -2)
        inputs = inputs + np.matmul(erased, told)
        same = np.arange(a.shape[-1])
        unit = same[:, None] == same[None, :]
        maps = np.where(unit, steps_of_chunks, 0.0) + np.matmul(erased, reads)
        states, last = states_of(np, compose, (maps, inputs), steps.first)
        u = np.matmul(reads, states) + told
        q_a = _pairs(np, q, a, total, total, upto)
        out = out + np.einsum("brnts,bnse->brnte", q_a, u)
    out = out + np.einsum("brntd,bnde->brnte", q * np.exp(total)[:, None], states)
    made = out.reshape(*out.shape[:2], out.shape[2] * chunk, out.shape[-1])
    return made[..., :n, :], last


def fitting(chunk: int, steps: Any) -> int:
    """Returns the chunk size to use: `chunk`, or the number of steps rounded up to a power of two
    if that is less. Raises RuleError if `chunk` is no power of two, or the length is not a
    number."""
    if chunk < 1 or chunk & (chunk - 1):
        raise RuleError(f"'chunk' must be a power of two, not {chunk}")
    if not isinstance(steps, int):
        raise RuleError(f"the length of a recurrence must be a number, not {steps}")
    return min(chunk, 1 << (steps - 1).bit_length())


def compose(np: Any, earlier: Values, later: Values) -> Values:
    """Composes two affine maps S -> T S + X of matrix states, given as (T, X), to the map that
    applies `earlier` first."""
    (t1, x1), (t2, x2) = earlier, later
    return np.matmul(t2, t1), np.matmul(t2, x1) + x2


def inverted(np: Any, lower: Any) -> Any:
    """Inverts I - lower for a triangle [..., c, c] that is 0 on its diagonal.

    A small one as I + L + L^2 + ... = (I + L)(I + L^2)(I + L^4)..., a larger one in blocks:
    [[A, 0], [D L A, D]] with A and D the inverses of the diagonal blocks.
    """
    size = lower.shape[-1]
    if size > BASE:
        half = size // 2
        first = inverted(np, lower[..., :half, :half])
        second = inverted(np, lower[..., half:, half:])
        corner = np.matmul(np.matmul(second, lower[..., half:, :half]), first)
        nothing = np.full(first.shape, 0.0, lower.dtype)
        rows = ([first, nothing], [corner, second])
        return np.concatenate([np.concatenate(r, axis=-1) for r in rows], axis=-2)
    row = np.arange(size)
    unit = np.where(row[:, None] == row[None, :], np.full((size, size), 1.0, lower.dtype), 0.0)
    found, power, reach = unit + lower, lower, 2
    while reach < size:
        power = np.matmul(power, power)
        found = found + np.matmul(found, power)
        reach *= 2
    return found


def _pairs(np: Any, x: Any, y: Any, at_x: Any, at_y: Any, kept: Any) -> Any:
    return pairs_of(np, x, y, gates_between(np, at_x, at_y, kept))


def gates_between(np: Any, at_x: Any, at_y: Any, kept: Any) -> Any:
    """Returns exp(at_x[t] - at_y[s]) as `[b, n, t, s, d]`: the decay from step s to step t.

    It is 0 for pairs of steps where `kept` is false.
    """
    apart = at_x[..., :, None, :] - at_y[..., None, :, :]
    return np.exp(np.where(kept[:, :, None], apart, -np.inf))


def pairs_of(np: Any, x: Any, y: Any, factors: Any) -> Any:
    """sum_d x[t] y[s] factors[t, s] of `x [b, r, n, t, d]` and `y [b, n, s, d]`."""
    if factors.shape[-1] == 1:  # one decay for all features: a matmul
        return np.einsum("brntd,bnsd->brnts", x, y) * factors[..., 0][:, None]
    together = y[..., None, :, :] * factors
    return np.sum(x[..., :, None, :] * together[:, None], axis=-1)


def states_of(np: Any, combine: Any, maps: Values, first: Any) -> tuple[Any, Any]:
    """Scans the affine maps of all chunks from state `first`. Returns the states [b, n, d, e] at
    the start of each chunk, and the state after the last chunk."""
    transitions, inputs = blocked(np, combine, maps, axis=-3)
    start = first[:, None]
    if combine is gate_combine:
        ends = transitions * start + inputs
    else:
        ends = np.matmul(transitions, np.broadcast_to(start, inputs.shape)) + inputs
    return np.concatenate([start, ends], axis=1)[:, :-1], ends[:, -1]


def chunked(np: Any, x: Any, chunk: int) -> Any:
    """Splits [..., n, d] into [..., n / chunk, chunk, d]; padding with zeros changes no state."""
    *lead, n, width = x.shape
    rest = -n % chunk
    if rest:
        x = np.concatenate([x, np.full((*lead, rest, width), 0.0, x.dtype)], axis=-2)
    return x.reshape(*lead, (n + rest) // chunk, chunk, width)


def recurrent(np: Any, steps: Steps) -> tuple[Any, Any]:
    """A sequential recurrence on NumPy arrays, which defines the result of `chunkwise`."""
    state = steps.first
    out = np.empty((*steps.q.shape[:-1], steps.v.shape[-1]), state.dtype)
    for t in range(steps.v.shape[1]):
        held = state
        state = np.exp(steps.decay[:, t])[..., None] * held
        if steps.erase is not None:
            seen = np.einsum("bd,bde->be", steps.read[:, t], held)
            state = state + steps.erase[:, t, :, None] * seen[:, None, :]
        state = state + steps.k[:, t, :, None] * steps.v[:, t, None, :]
        out[:, :, t] = np.einsum("brd,bde->bre", steps.q[:, :, t], state)
    return out, state
