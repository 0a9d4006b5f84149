"""Low-rank adapters: a single one, one for each row of x, and one on weights in NF4.

Sources: Hu et al., LoRA, 2021; Chen et al., Punica, 2023 (many at once); Dettmers et al., QLoRA,
2023.
"""

from __future__ import annotations

from typing import Any

from stack.hosted import op
from stack.ops.lora import reference
from stack.ops.qgemm import storage

__all__ = ["linear", "multi", "qlora"]


def _low_rank(np: Any, x: Any, a: Any, b: Any, scale: float) -> Any:
    """Returns scale (x a^T) b^T for rows of x. Sums are in at least f32; x a^T is rounded to the
    type of x."""
    wide = np.result_type(x, np.float32)
    inner = np.matmul(x, a.swapaxes(0, 1), dtype=wide).astype(x.dtype)
    return np.matmul(inner, b.swapaxes(0, 1), dtype=wide) * scale


@op("lora.linear", rule="... k, n k, r k, n r -> ... n", reference=reference.linear, autocast="low")
def linear(np, x, weight, a, b, *, scale: float = 1.0):
    """x @ weight.T + scale (x @ a.T) @ b.T: Hu et al., 2021.

    `x [..., k]`, `weight [n, k]`, `a [r, k]`, `b [n, r]` of one float type; `scale` is alpha / r.
    Sums are in at least f32; the intermediate between a and b is rounded to the type of x.
    """
    rows, wide = x.reshape(-1, x.shape[-1]), np.result_type(x, np.float32)
    made = np.matmul(rows, weight.swapaxes(0, 1), dtype=wide) + _low_rank(np, rows, a, b, scale)
    return made.astype(x.dtype).reshape(*x.shape[:-1], weight.shape[0])


@op(
    "lora.multi",
    rule="t k, n k, l r k, l n r, t: i32 < l or -1 -> t n",
    reference=reference.multi,
)
def multi(np, x, weight, a, b, adapter, *, scale: float = 1.0):
    """x @ weight.T + scale (x @ a[i].T) @ b[i].T, i by row: Chen et al., Punica, 2023.

    `x [t, k]`, `weight [n, k]`, `a [l, r, k]`, `b [l, n, r]` of one float type, `adapter [t]`
    int32; -1 means no adapter. All rows are multiplied with all adapters, and a mask selects: ranks
    are small, so two dense matmuls are enough.
    """
    (rows, k), (count, rank, _) = x.shape, a.shape
    n, wide = weight.shape[0], np.result_type(x, np.float32)
    every = np.matmul(x, a.reshape(count * rank, k).swapaxes(0, 1), dtype=wide)
    is_own = adapter[:, None] == np.arange(count, dtype=np.int32)
    own = every.reshape(rows, count, rank) * is_own.astype(wide)[..., None]
    side = b.transpose(0, 2, 1).reshape(count * rank, n)
    low = np.matmul(own.reshape(rows, count * rank).astype(x.dtype), side, dtype=wide) * scale
    return (np.matmul(x, weight.swapaxes(0, 1), dtype=wide) + low).astype(x.dtype)


@op("lora.qlora", rule="... k, n h: u8, n g, r k, n r -> ... n", reference=reference.qlora)
def qlora(np, x, packed, absmax, a, b, *, scale: float = 1.0):
    """x @ weight.T + scale (x @ a.T) @ b.T with weights in NF4: Dettmers et al., QLoRA, 2023.

    `packed [n, k / 2]` uint8 and `absmax [n, groups]` as in `qgemm.nf4`; the rest as in `linear`.
    Only a and b are trained: weights have no derivative.
    """
    k, n = x.shape[-1], packed.shape[0]
    storage.check_pairs(packed, "absmax", absmax, k)
    rows, wide = x.reshape(-1, k), np.result_type(x, np.float32)
    weight = storage.nf4(np, packed, absmax).astype(x.dtype)
    made = np.matmul(rows, weight.swapaxes(0, 1), dtype=wide) + _low_rank(np, rows, a, b, scale)
    return made.astype(x.dtype).reshape(*x.shape[:-1], n)
