"""Column reductions of rows that begin at odd addresses: several rows are one aligned row.

    sum over r of x[r, c]      x: bf16[131104, 4095], of which each eighth row begins at 16 bytes

    sum over q of y[q, j]      y: bf16[16388, 32760], the same memory; its rows are aligned
    sum over s of z[s, c]      z: f32[8, 4095], the result

Threads load 16 bytes at once from aligned rows, and single elements from others. Rows that are left
over are reduced on their own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import gcd, prod

from stack.ir.algebra import COMBINE
from stack.ir.builder import converted, make, reshaped, sliced
from stack.ir.node import Node, topological
from stack.ir.ops import is_view
from stack.ir.traits import is_alias, is_elementwise
from stack.ir.warp_ops import VECTOR_BYTES
from stack.passes.tiling.frame import static, wide


def rows_together(node: Node) -> int:
    """Returns how many rows of a reduction along the first axes make an aligned row; 1 if rows are
    aligned, or if their elements are no contiguous memory.

    The array that is reduced is computed elementwise from arrays of its shape.
    """
    source = node.args[0]
    axes = sorted(int(a) for a in node.attrs["axes"])
    kept = source.shape[len(axes) :]
    if axes != list(range(len(axes))) or not kept or not all(isinstance(s, int) for s in kept):
        return 1
    read = {source}.union(*(n.args for n in topological([source], is_elementwise)))
    ends = [n for n in read if not is_elementwise(n) and n.tensor.rank]
    if not ends or any(n.shape != source.shape or (is_view(n) and not is_alias(n)) for n in ends):
        return 1
    return aligned_rows(prod(map(static, kept)), ends)


def aligned_rows(line: int, arrays: Sequence[Node]) -> int:
    """Returns how many rows of `line` elements make an aligned row of all arrays."""
    return VECTOR_BYTES // gcd(VECTOR_BYTES, line * min(a.dtype.bytes for a in arrays))


def folded(node: Node, rows: int, best: Callable[[int, int], int]) -> Node:
    """Returns a reduction along the first axes as one of aligned rows, and one of their rests.

    Args:
        node: the reduction.
        rows: how many rows make an aligned row.
        best: the best number of parts, by the size of an aligned row and the number of them.
    """
    source, kind = node.args[0], str(node.attrs["kind"])
    kept = tuple(map(static, node.shape))
    line, size = prod(kept), prod(map(static, source.shape))
    whole, rest = divmod(size // line, rows)
    parts = next(p for p in range(best(rows * line, whole), 0, -1) if whole % p == 0)

    def reduced(x: Node, shape: tuple[int, ...], axis: int) -> Node:
        return make("reduce", (reshaped(x, shape),), {"kind": kind, "axes": (axis,)})

    flat = reshaped(converted(source, wide(node.dtype)), (size,))
    end = whole * rows * line
    first = reduced(sliced(flat, (0,), (end,)), (parts, whole // parts, rows * line), 1)
    total = reduced(first, (parts * rows, line), 0)
    if rest:
        left = sliced(flat, (end,), (size,))
        more = reduced(left, (rest, line), 0) if rest > 1 else reshaped(left, (line,))
        total = make(COMBINE[kind], (total, more))
    return reshaped(converted(total, node.dtype), kept)
