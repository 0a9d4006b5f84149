"""The recurrences of `chunkwise` as operators, with the names of their papers.

Each operator has one function that brings its operands into the common form. The decomposition then
works in chunks, the reference step by step.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy

from stack.errors import RuleError
from stack.hosted import Kernel, Op, op
from stack.ir.types import TensorType
from stack.ops.scan.chunkwise import Steps, chunkwise, recurrent
from stack.ops.scan.chunkwise_gradient import gradient

Form = Callable[..., Steps]  # (numpy, *operands, **attributes)
LARGEST = 128  # key features that a program of the kernel can hold


def member(
    name: str,
    rule: str,
    chunk: int,
    after: Callable[..., Any] | None = None,
    kernels: tuple[Kernel, ...] = (),
    gradient: Op | None = None,
):
    """Returns a decorator that declares an operator from a function returning its `Steps`.

    The function computes in at least f32. `rule` is the axis rule of the operands. The operator
    returns results and the last state, with the shapes of its first and last operand except for the
    number of values: see `Op`. `after(np, out, *operands)` is applied to the results.
    """

    def declare(form: Form) -> Op:
        known = inspect.signature(form, eval_str=True)
        names = list(known.parameters)

        def run(np: Any, solve: Callable[..., Any], operands: Any, attributes: Any) -> Any:
            size = attributes.pop("chunk")
            if operands[0].shape[-2] == 0:
                raise RuleError(f"{names[1]!r} has no steps: a recurrence needs at least one")
            steps = form(np, *operands, **attributes)
            out, last = solve(np, steps, size)
            *lead, d, e = operands[-1].shape
            out = out.reshape(*_lead(operands, lead, steps), *out.shape[2:])
            if after is not None:
                out = after(np, out, *operands)
            kind = operands[0].dtype
            return out.astype(kind), last.reshape(*lead, d, e).astype(operands[-1].dtype)

        def decomposition(np: Any, *operands: Any, **attributes: Any) -> Any:
            return run(np, chunkwise, operands, dict(attributes))

        def reference(*operands: Any, **attributes: Any) -> Any:
            solve = lambda np, steps, _: recurrent(np, steps)
            return run(numpy, solve, operands, dict(attributes))

        size = inspect.Parameter(
            "chunk", inspect.Parameter.KEYWORD_ONLY, default=chunk, annotation=int
        )
        decomposition.__signature__ = known.replace(  # pyright: ignore
            parameters=[*known.parameters.values(), size]
        )
        decomposition.__doc__ = inspect.getdoc(form)
        made = op(
            name,
            rule=rule,
            reference=reference,
            kernels=kernels,
            gradient=gradient,
            autocast="f32",
        )
        return made(decomposition)

    return declare


def _lead(operands: Any, lead: list[Any], steps: Steps) -> list[Any]:
    """Returns the leading axes of the results, from those of the states, `lead`.

    The last one, of heads, is multiplied by the number of query heads that read one state.
    """
    share = steps.q.shape[1]
    return list(lead) if share == 1 else [*lead[:-1], lead[-1] * share]


def _flat(np: Any, x: Any, own: int) -> Any:
    """Flattens the axes before the last `own` to one, and casts to at least f32."""
    wide = np.result_type(x, np.float32)
    return x.astype(wide).reshape(-1, *x.shape[x.ndim - own :])


def _heads(np: Any, x: Any, heads: Any) -> Any:
    """Repeats an operand [..., n, m] shared by all heads, to [b, n, m] with one b per head."""
    flat = _flat(np, x, 2)
    return np.broadcast_to(flat[:, None], (flat.shape[0], heads, *flat.shape[1:])).reshape(
        -1, *flat.shape[1:]
    )


def _too_wide(*types: TensorType, **_: Any) -> str:
    """Returns why kernels that hold all features of a key cannot run; "" if they can."""
    features = types[-1].shape[-2]
    if not isinstance(features, int) or features > LARGEST:
        return f"it holds up to {LARGEST} features of a key, not {features}"
    return ""


def _not_gla(*types: TensorType, **_: Any) -> str:
    """Returns why `chunkwise_features_triton` refuses such operands; "" if it accepts them."""
    return _too_wide(*types) or ("" if len({t.dtype for t in types}) == 1 else "two element types")


def _by_hand(run: str, refuses: Callable[..., str] = _too_wide) -> tuple[Kernel, ...]:
    where, types = f"stack.ops.scan.chunkwise_{run}", ("bf16", "f16")
    return (Kernel("cuda", where, "carried", types, refuses, capturable=True),)


_STATE = "... h d! e"
_QKV = "... h n~ d!, ... h n~ d!, ... h n~ e"
_MADE = "-> ... h n~ e, ... h d! e"


@member(
    "scan.linear_attention",
    "... (g r) n~ d!, ... g n~ d!, ... g n~ e, ... g n~ c, ... g n~, ... g d! e"
    " -> ... (g r) n~ e, ... g d! e",
    chunk=16,
)
def linear_attention(
    np, q, k, v, log_decay, beta, first, *, delta: bool = True, scale: float = 0.0
):
    """Linear attention with decay and the delta rule: Yang et al., "Gated DeltaNet", 2024.

    S <- (I - beta k k^T) diag(exp(log_decay)) S + beta k v^T, with result scale q^T S. Without
    `delta` nothing is erased, and `beta` is not used. `q [..., h, n, d]`, `k [..., g, n, d]`,
    `v [..., g, n, e]`, `log_decay [..., g, n, d or 1]`, `beta [..., g, n]`, `first [..., g, d, e]`:
    h / g heads read one state. `scale` of 0 means 1 / sqrt(d). Returns results and the last state.
    """
    (h, n, d), g = q.shape[-3:], k.shape[-3]
    if log_decay.shape[-1] not in (1, d):
        raise RuleError(f"'log_decay' has {log_decay.shape[-1]} features; write 1, or {d} as 'k'")
    wide = np.result_type(q, np.float32)
    queries = q.astype(wide).reshape(-1, h // g, n, d) * (scale or d**-0.5)
    keys, values, decay, state = (
        _flat(np, x, own) for x, own in ((k, 2), (v, 2), (log_decay, 2), (first, 2))
    )
    if not delta:
        return Steps(queries, keys, values, decay, state)
    rate = _flat(np, beta, 1)[..., None]
    return Steps(queries, keys * rate, values, decay, state, -(keys * rate), keys * np.exp(decay))


_GLA = f"{_QKV}, ... h n~ d!, {_STATE}"
_GLA_WHOLE = "... h n~ d!, ... h n~ d!, ... h n~ e!, ... h n~ d!, ... h d! e!"
_OUT_WHOLE = "... h n~ e!, ... h d! e!"


@op(
    "scan.gla_gradient",
    rule=f"{_GLA_WHOLE}, {_OUT_WHOLE}, {_OUT_WHOLE} -> {_GLA_WHOLE}",
    kernels=_by_hand("features_backward_triton:gla_gradient", _not_gla),
)
def gla_gradient(
    np,
    q,
    k,
    v,
    log_gate,
    first,
    out,
    last,
    told,
    told_last,
    *,
    scale: float = 0.0,
    chunk: int = 16,
):
    """The gradients of `gla`, given those of its results, `told [..., h, n, e]` and `told_last`."""
    if q.shape[-2] == 0:
        raise RuleError("'q' has no steps: a recurrence needs at least one")
    scale = scale or q.shape[-1] ** -0.5
    steps = _plain(np, q, k, v, log_gate, first, scale)
    dq, *rest = gradient(np, steps, _flat(np, told, 2), _flat(np, told_last, 2), chunk)
    made = zip((dq * scale, *rest), (q, k, v, log_gate, first), strict=True)
    return tuple(x.reshape(*of.shape).astype(of.dtype) for x, of in made)


@member(
    "scan.gla",
    f"{_GLA} {_MADE}",
    chunk=16,
    kernels=_by_hand("features_triton:gla", _not_gla),
    gradient=gla_gradient,
)
def gla(np, q, k, v, log_gate, first, *, scale: float = 0.0):
    """Gated linear attention: Yang et al., 2023. S <- diag(exp(log_gate)) S + k v^T.

    `q`, `k` and `log_gate [..., h, n, d]`, `v [..., h, n, e]`, `first [..., h, d, e]`; `scale` of 0
    means 1 / sqrt(d). Returns scale q^T S, and the last state.
    """
    return _plain(np, q, k, v, log_gate, first, scale)


@member(
    "scan.retention",
    f"{_QKV}, h, {_STATE} {_MADE}",
    chunk=64,
    kernels=_by_hand("triton:retention"),
)
def retention(np, q, k, v, log_decay, first, *, scale: float = 0.0):
    """Retention: Sun et al., "Retentive network", 2023. S <- exp(log_decay) S + k v^T.

    `log_decay [h]`: one per head; the rest as for `gla`.
    """
    by_step = np.broadcast_to(log_decay[:, None, None], (*q.shape[:-1], 1))
    return _plain(np, q, k, v, by_step, first, scale)


@member("scan.delta", f"{_QKV}, ... h n~, {_STATE} {_MADE}", chunk=16)
def delta(np, q, k, v, beta, first, *, scale: float = 0.0):
    """The delta rule: Yang et al., "Parallelizing linear transformers", 2024.

    S <- S + beta k (v - S^T k)^T: moves the value stored for a key towards v. `beta [..., h, n]`;
    keys should have length 1; the rest as for `gla`.
    """
    plain = _plain(np, q, k, v, np.full((*q.shape[:-1], 1), 0.0, q.dtype), first, scale)
    rate = _flat(np, beta, 1)[..., None]
    written = plain.k * rate
    return Steps(plain.q, written, plain.v, plain.decay, plain.first, -written, plain.k)


@member(
    "scan.rwkv7",
    f"... h n~ d!, {_QKV}, ... h n~ d!, ... h n~ d!, {_STATE} {_MADE}",
    chunk=16,
)
def rwkv7(np, r, log_decay, k, v, a, b, first):
    """The state of RWKV-7: Peng et al., 2025. S <- diag(exp(log_decay)) S + b (a^T S) + k v^T.

    `r`, `log_decay`, `k`, `a`, `b` `[..., h, n, d]`, `v [..., h, n, e]`, `first [..., h, d, e]`.
    Returns r^T S, and the last state.
    """
    plain = _plain(np, r, k, v, log_decay, first, 1.0)
    return Steps(
        plain.q, plain.k, plain.v, plain.decay, plain.first, _flat(np, b, 2), _flat(np, a, 2)
    )


def _plain(np: Any, q: Any, k: Any, v: Any, decay: Any, first: Any, scale: float) -> Steps:
    """Returns the operands of a recurrence without erasing, with one query head per state. `scale`
    of 0 means 1 / sqrt(d)."""
    queries = _flat(np, q, 2)[:, None] * (scale or q.shape[-1] ** -0.5)
    return Steps(queries, *(_flat(np, x, 2) for x in (k, v, decay, first)))


def _skipped(np: Any, out: Any, x: Any, *rest: Any) -> Any:
    skip = rest[-2].astype(out.dtype)
    return out + x.astype(out.dtype) * skip[:, None, None]


@member(
    "scan.ssd",
    "... h n~ p, ... h n~, h, ... n~ m!, ... n~ m!, h, ... h m! p -> ... h n~ p, ... h m! p",
    chunk=64,
    after=_skipped,
    kernels=_by_hand("triton:ssd"),
)
def ssd(np, x, dt, a, b, c, skip, first):
    """State space duality of Mamba-2: Dao and Gu, 2024. S <- exp(dt a) S + b (dt x)^T.

    `x [..., h, n, p]`, `dt [..., h, n]` above 0, `a [h]` below 0, `b` and `c` `[..., n, m]`, shared
    by all heads, `skip [h]`, `first [..., h, m, p]`. Returns c^T S + skip x, and the last state.
    """
    h = x.shape[-3]
    wide = np.result_type(x, np.float32)
    steps = dt.astype(wide)
    decay = (steps * a.astype(wide)[:, None]).reshape(-1, steps.shape[-1], 1)
    values = _flat(np, x, 2) * steps.reshape(-1, steps.shape[-1], 1)
    return Steps(_heads(np, c, h)[:, None], _heads(np, b, h), values, decay, _flat(np, first, 2))
