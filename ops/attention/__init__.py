"""Attention: one decomposition for all masks and scores, a tiled reference, kernels by hand."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from stack.errors import RuleError
from stack.hosted import Kernel, op
from stack.ir.types import TensorType
from stack.ops.attention import decomposition, programs, reference
from stack.ops.attention.decomposition import attend, gathered, rotated
from stack.ops.attention.fp8 import e4m3
from stack.ops.attention.frequencies import Rope
from stack.ops.attention.programs import CACHED, PLAIN, Place, Program
from stack.ops.attention.rule import check_pages, check_tree
from stack.ops.attention.variant import QUERIES_AND_KEYS, subtree_ends, variant

__all__ = ["Place", "Program", "Rope", "attention", "subtree_ends", "variant"]

_HALVES = ("bf16", "f16")


def _not_flash(q: TensorType, k: TensorType, v: TensorType, *_: TensorType, **at: Any) -> str:
    """Returns why `flash_triton` and `flash_backward_triton` refuse such operands; "" if not."""
    if q.rank != 4 or q.shape[-1] not in (64, 128) or v.shape[-1] != q.shape[-1]:
        return "it takes [b, h, s, d] with heads of 64 or 128"
    if q.shape[-2] != k.shape[-2]:
        return "it takes as many keys as queries"
    if q.dtype.name not in _HALVES or q.dtype is not k.dtype or q.dtype is not v.dtype:
        return "it takes queries, keys and values of one 16-bit type"
    odd = [n for n in ("window", "softcap", "scale") if at[n]]
    return f"it has no {', '.join(odd)}" if odd else ""


def _not_specialized(q: TensorType, k: TensorType, *rest: TensorType, **at: Any) -> str:
    """Returns why `flash_gluon` and `flash_backward_gluon` refuse such operands; "" if not."""
    length = q.shape[-2] if q.rank > 1 else 0
    few = not isinstance(length, int) or length < 128
    return _not_flash(q, k, *rest, **at) or ("its tiles have 128 queries" if few else "")


def _flash(run: str, dtypes: tuple[str, ...] = _HALVES) -> tuple[Kernel, ...]:
    """Returns the kernels of a flash attention operator: the warp-specialized one is preferred.

    It needs enough queries to fill a tile; else the Triton kernel runs. `run`: "module:function",
    the module without the suffix of its language.
    """
    folder = "stack.ops.attention"
    module, _, name = run.partition(":")
    own, other = (f"{folder}.{module}_{language}:{name}" for language in ("gluon", "triton"))
    return (
        Kernel("cuda", own, "specialized", dtypes, _not_specialized, arch="sm_90"),
        Kernel("cuda", other, "flash", dtypes, _not_flash),
    )


def _not_decode(q: TensorType, k: TensorType, v: TensorType, *_: TensorType, **at: Any) -> str:
    """Returns why `decode_triton` refuses such operands; "" if it accepts them."""
    if q.rank != 4 or q.shape[-2] != 1:
        return "it takes one query [b, h, 1, d] of each sequence"
    if q.shape[-1] not in (64, 128) or v.shape[-1] != q.shape[-1]:
        return "it takes heads of 64 or 128"
    if q.dtype.name not in _HALVES or q.dtype is not k.dtype or q.dtype is not v.dtype:
        return "it takes queries, keys and values of one 16-bit type"
    odd = [n for n in ("window", "softcap") if at[n]]
    return f"it has no {', '.join(odd)}" if odd else ""


def _decode(name: str) -> tuple[Kernel, ...]:
    run = f"stack.ops.attention.decode_triton:{name}"
    return (Kernel("cuda", run, name, _HALVES, _not_decode, capturable=True),)


attention = variant(
    "attention.attention",
    PLAIN,
    """softmax(scale q k^T) v for each head: Vaswani et al., "Attention is all you need", 2017.

    `q [..., h, s, d]`, `k [..., g, t, d]`, `v [..., g, t, e]` of one float type; each of the g
    heads of keys serves h / g heads of queries. Scores and their sums are at least f32.

    Attributes: `causal` hides keys after the query; the last query has the position of the last
    key. `window` hides all but that many keys up to the query. `softcap` c replaces a score x by
    c tanh(x / c). `scale` of 0 means 1 / sqrt(d).
    """,
    kernels=_flash("flash:launched"),
)
with_sinks = variant(
    "attention.with_sinks",
    programs.SINKS,
    """Attention with one more score per head, which has no value: Xiao et al., 2023.

    `sinks [h]`; the rest as for `attention`.
    """,
    causal=True,
)
with_alibi = variant(
    "attention.with_alibi",
    programs.ALIBI,
    """Attention whose scores decrease with distance: Press, Smith and Lewis, 2021.

    `slopes [h]`: a score is reduced by the slope times the distance of its key; the rest as for
    `attention`.
    """,
    causal=True,
)
with_bias = variant(
    "attention.with_bias",
    programs.BIAS,
    """Attention with a number added to each score: Raffel et al., 2019.

    `bias [..., h, s, t]`; -inf hides a key. A query that sees no key gives 0.
    """,
)
with_documents = variant(
    "attention.with_documents",
    programs.DOCUMENTS,
    """Attention within documents packed into one sequence: Krell et al., 2021.

    `of_queries [..., s]` and `of_keys [..., t]` are numbers of documents. A query that sees no key
    gives 0.
    """,
    causal=True,
)
with_prefix = variant(
    "attention.with_prefix",
    programs.PREFIX,
    """Causal attention, except for a prefix that all queries see: Raffel et al., 2019.

    `prefix [...]`: the number of keys in it.
    """,
)
with_tree = variant(
    "attention.with_tree",
    programs.TREE,
    """Attention of a tree of drafted tokens to their ancestors: Miao et al., "SpecInfer", 2023.

    The last s keys are those of the queries, in depth-first order. `ends [..., t]`: for each key,
    the first key after its subtree (`subtree_ends` computes it from parents); t for keys that all
    queries see. A mask of one number per key is from Wang et al., "FlashMask", 2024.
    """,
    values=check_tree,
)
with_cache = variant(
    "attention.with_cache",
    CACHED,
    """Attention to a partly filled cache: decoding.

    `lengths [...]`: the number of keys in it; queries are the last of them.
    """,
    causal=True,
    kernels=_decode("cached"),
)


@op(
    "attention.with_lse_gradient",
    rule="... (g r) s! d!, ... g t! d!, ... g t! e!,"
    " ... (g r) s! e!, ... (g r) s!, ... (g r) s! e!, ... (g r) s!"
    " -> ... (g r) s! d!, ... g t! d!, ... g t! e!",
    kernels=_flash("flash_backward:launched", (*_HALVES, "f32")),  # log-sum-exps are f32
)
def with_lse_gradient(
    np,
    q,
    k,
    v,
    out,
    lse,
    told,
    told_lse,
    *,
    causal: bool = False,
    window: int = 0,
    softcap: float = 0.0,
    scale: float = 0.0,
):
    """The gradients of `with_lse`; weights are recomputed from the log-sum-exp.

    `told [..., h, s, e]` and `told_lse [..., h, s]` are the gradients of its results.
    """
    at = {"causal": causal, "window": window, "softcap": softcap, "scale": scale}
    return decomposition.gradient(np, q, k, v, out, lse, told, told_lse, at)


def _with_lse(q: Any, k: Any, v: Any, **attributes: Any) -> Any:
    return reference.attend(PLAIN, q, k, v, (), attributes)


@op(
    "attention.with_lse",
    rule=f"{QUERIES_AND_KEYS} -> ... (g r) s! e, ... (g r) s!",
    reference=_with_lse,
    kernels=_flash("flash:launched_with_lse"),
    gradient=with_lse_gradient,
    autocast="low",
)
def with_lse(
    np,
    q,
    k,
    v,
    *,
    causal: bool = False,
    window: int = 0,
    softcap: float = 0.0,
    scale: float = 0.0,
):
    """Attention, and the log-sum-exp of each query's scores, for the backward pass and `merge`.

    Operands as for `attention`; the second result is at least f32.
    """
    at = {"causal": causal, "window": window, "softcap": softcap, "scale": scale}
    return attend(np, PLAIN, q, k, v, (), at)


@op("attention.merge", rule="... n d, ... n -> ... d, ...", reference=reference.merge)
def merge(np, outs, lses):
    """Merges results over n parts of the keys: Dao et al., "Flash-Decoding", 2023.

    `outs [..., n, d]`, `lses [..., n]` as returned by `with_lse`. Merging (out, lse) pairs is
    associative, so parts may be merged in any order, as in split keys and ring attention.
    """
    wide = np.result_type(outs, np.float32)
    held = lses.astype(wide)
    most = np.max(held, axis=-1, keepdims=True)
    top = np.maximum(most, decomposition.lowest(np, most))  # -inf for parts without a key
    weights = np.exp(held - top)
    total = np.maximum(np.sum(weights, axis=-1, keepdims=True), decomposition.LEAST)
    out = np.sum(outs.astype(wide) * (weights / total)[..., None], axis=-2)
    lse = np.where(most == -np.inf, -np.inf, top + np.log(total))
    return out.astype(outs.dtype), lse[..., 0].astype(lses.dtype)


@op(
    "attention.paged",
    rule="... (g r) s! d, p! n! g d, p! n! g e, ... m!: int, ...: int -> ... (g r) s! e",
    reference=partial(reference.paged, PLAIN),
    kernels=_decode("paged"),
    autocast="low",
    values=check_pages,
)
def paged(
    np,
    q,
    pool_k,
    pool_v,
    table,
    lengths,
    *,
    causal: bool = True,
    window: int = 0,
    softcap: float = 0.0,
    scale: float = 0.0,
):
    """Attention to keys that are stored in pages: Kwon et al., "PagedAttention", 2023.

    `pool_k [p, n, g, d]`, `pool_v [p, n, g, e]`: p pages of n keys; `table [..., m]`: the pages of
    each sequence, in order; `lengths [...]`: its number of keys. Queries are the last of them.
    """
    keys, values = (gathered(np, x, table, lengths) for x in (pool_k, pool_v))
    at = {"causal": causal, "window": window, "softcap": softcap, "scale": scale}
    return attend(np, CACHED, q, keys, values, (lengths,), at)[0]


@op(
    "attention.mla",
    rule="... h s! d, ... h s! r, ... t! c, ... t! r, h c d, h c e -> ... h s! e",
    autocast="low",
)
def mla(np, q, q_rope, latent, k_rope, w_k, w_v, *, causal: bool = True, scale: float = 0.0):
    """Latent attention: keys and values of all heads come from one vector. DeepSeek-V2, 2024.

    A cache stores `latent [..., t, c]` and `k_rope [..., t, r]`, which all heads share. `w_k [h, c,
    d]` and `w_v [h, c, e]` compute keys and values from it. `scale` of 0 means 1 / sqrt(d + r).
    """
    d, (t, c), r = q.shape[-1], latent.shape[-2:], k_rope.shape[-1]
    held = latent.reshape(-1, t, c)
    keys = np.einsum("btc,hcd->bhtd", held, w_k)
    values = np.einsum("btc,hce->bhte", held, w_v)
    shared = np.broadcast_to(k_rope.reshape(-1, 1, t, r), (*keys.shape[:-1], r))
    at = {"causal": causal, "window": 0, "softcap": 0.0, "scale": scale or (d + r) ** -0.5}
    return attend(np, PLAIN, q, keys, values, (), at, [(q_rope, shared)])[0]


def _not_latent(q: TensorType, q_rope: TensorType, *rest: TensorType, **_: Any) -> str:
    """Returns why `mla_triton` refuses such operands; "" if it accepts them."""
    if q.rank != 4 or q.shape[-2] != 1:
        return "it takes one query [b, h, 1, c] of each sequence"
    widths = q.shape[-1], q_rope.shape[-1]
    if any(w not in (16, 32, 64, 128, 256, 512) for w in widths):
        return f"it takes powers of two of features, not {widths[0]} and {widths[1]}"
    return "" if len({t.dtype for t in (q, q_rope, *rest)}) == 1 else "it takes one element type"


def _not_deepseek(q: TensorType, q_rope: TensorType, *rest: TensorType, **at: Any) -> str:
    """Returns why `mla_gluon` refuses such operands; "" if it accepts them."""
    why = _not_latent(q, q_rope, *rest, **at)
    widths = q.shape[-1], q_rope.shape[-1]
    return why or ("" if widths == (512, 64) else f"it takes 512 and 64 features, not {widths}")


def _absorbed(language: str, name: str, refuses: Callable[..., str], arch: str = "") -> Kernel:
    run = f"stack.ops.attention.mla_{language}:absorbed"
    return Kernel("cuda", run, name, _HALVES, refuses, capturable=True, arch=arch)


@op(
    "attention.mla_absorbed",
    rule="... h s! c!, ... h s! r, ... t! c!, ... t! r -> ... h s! c!",
    kernels=(
        _absorbed("gluon", "specialized", _not_deepseek, "sm_90"),
        _absorbed("triton", "absorbed", _not_latent),
    ),
    autocast="low",
)
def mla_absorbed(np, q, q_rope, latent, k_rope, *, causal: bool = True, scale: float = 0.0):
    """Latent attention with queries multiplied with the latent vector directly. DeepSeek-V2, 2024.

    (q w_k^T) c = q (w_k^T c): `q [..., h, s, c]` already includes w_k, and w_v is applied to the
    result afterwards. There is one head of keys, of width c + r (512 + 64), and of values, of width
    c. `scale` is that of the original widths, and must be given.
    """
    if not scale:
        raise RuleError("'scale' is needed: the original head width cannot be derived from 'q'")
    at = {"causal": causal, "window": 0, "softcap": 0.0, "scale": scale}
    keys, shared = latent[..., None, :, :], k_rope[..., None, :, :]
    return attend(np, PLAIN, q, keys, keys, (), at, [(q_rope, shared)])[0]


@op("attention.rope", rule="... h s d!, ... s f, ... s f -> ... h s d!")
def rope(np, x, cos, sin, *, interleaved: bool = False):
    """Rotates pairs of features by the angle of their position: Su et al., "RoFormer", 2021.

    `x [..., h, s, d]`; `cos [..., s, f]`, `sin [..., s, f]` from `Rope`, for f <= d / 2 pairs. A
    pair is (i, i + f), or (2i, 2i + 1) if `interleaved`. Other features are unchanged.
    """
    return rotated(np, x, cos, sin, interleaved)


@op(
    "attention.fp8",
    rule="... (g r) s! d: u8, ... g t! d: u8, ... g t! e: u8, ... (g r), ... g, ... g"
    " -> ... (g r) s! e",
)
def fp8(np, q, k, v, q_scale, k_scale, v_scale, *, causal: bool = False, scale: float = 0.0):
    """Attention on E4M3 bytes with a scale for each head: Shah et al., "FlashAttention-3", 2024.

    `q`, `k`, `v` are uint8 (`tensor.view(torch.uint8)`). Scales and the result are f32. A number is
    the value of its code times the scale of its head.
    """
    wide = np.result_type(q_scale, np.float32)
    q, k, v = (
        e4m3(np, x).astype(wide) * by.astype(wide)[..., None, None]
        for x, by in ((q, q_scale), (k, k_scale), (v, v_scale))
    )
    at = {"causal": causal, "window": 0, "softcap": 0.0, "scale": scale}
    return attend(np, PLAIN, q, k, v, (), at)[0]
