"""A mixture of experts: routing, tokens dropped by a capacity, and how full the matmuls are.

    python -m stack.demos.experts

Tokens choose experts unevenly. With a capacity, every expert computes the same number of rows and
drops the tokens beyond it. Grouped matmuls compute only the existing rows, in blocks.
"""

from __future__ import annotations

import sys

import numpy as np

from stack.explore.table import table
from stack.ops.moe import combine, dispatch, grouped_gemm, plan, top_k

Array = np.ndarray
TOKENS, EXPERTS, TOP, WIDTH = 512, 8, 2, 32
BLOCK = 16  # rows of a grouped matmul computed at once


def routed(skew: float, seed: int = 0) -> tuple[Array, Array]:
    """Returns tokens and their gates; the larger `skew`, the more popular are the first experts."""
    rng = np.random.default_rng(seed)
    scores = rng.standard_normal((TOKENS, EXPERTS)) - skew * np.arange(EXPERTS)
    return rng.standard_normal((TOKENS, WIDTH)), np.asarray(top_k(scores, top=TOP))


def mixture(x: Array, gates: Array, weight: Array, capacity: int = 0) -> tuple[Array, Array]:
    """Returns the layer's output and the rows of each expert; capacity 0 means unlimited."""
    tokens, sizes = plan(gates, np.full(TOKENS * TOP, -1, np.int32), capacity=capacity)
    rows = grouped_gemm(dispatch(x, tokens), weight, sizes)
    return np.asarray(combine(rows, gates, tokens, sizes)), np.asarray(sizes)


def dense(x: Array, gates: Array, weight: Array) -> Array:
    """Computes every expert on every token: the definition of the layer."""
    return np.einsum("te,ted->td", gates, np.einsum("tk,edk->ted", x, weight))


def usage(sizes: Array, capacity: int) -> tuple[int, float]:
    """Returns the number of (token, expert) pairs dropped, and the used share of expert rows."""
    held = int(sizes.sum())
    computed = capacity * EXPERTS if capacity else int((-(-sizes // BLOCK)).sum()) * BLOCK
    return TOKENS * TOP - held, held / computed


def main() -> int:
    """Prints a line per skew and capacity; returns 1 if the uncapped layer is not the dense sum."""
    weight = np.random.default_rng(1).standard_normal((EXPERTS, WIDTH, WIDTH))
    rows: list[list[object]] = []
    wrong: list[str] = []
    for skew in (0.0, 0.25):
        x, gates = routed(skew)
        for factor in (1.0, 1.25, 2.0, 0.0):
            capacity = int(factor * TOKENS * TOP / EXPERTS)
            found, sizes = mixture(x, gates, weight, capacity)
            dropped, share = usage(sizes, capacity)
            error = float(np.abs(found - dense(x, gates, weight)).max())
            if not dropped and not error < 1e-9:
                wrong.append(f"skew {skew}, capacity {capacity}: error {error:.1e}")
            name = f"{factor:g} x the mean" if capacity else f"none, blocks of {BLOCK}"
            rows.append(
                [skew, name, f"{sizes.min()} to {sizes.max()}", dropped, f"{100 * share:.0f} %"]
            )
    print(f"{TOKENS} tokens, {TOP} of {EXPERTS} experts each\n")
    print(table(["skew", "capacity", "rows of an expert", "dropped", "rows in use"], rows))
    print("\n".join(wrong) or "\nwhere no token is dropped the layer is the dense sum")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
