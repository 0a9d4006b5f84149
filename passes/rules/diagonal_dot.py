"""Turn matmuls with a diagonal matrix into a scaling of rows or columns: nothing is summed.

sum over k of [i = k] v b_k is v b_i. Elements off the diagonal count as absent. An infinity of the
other operand, which 0 would turn into a nan, does not reach other rows. Part of decompose.
"""

from __future__ import annotations

from stack.ir import ops
from stack.ir.axes import Index
from stack.ir.builder import Builder, constant, converted, filled, make, spread_by_name
from stack.ir.dim import Dim, symbol
from stack.ir.node import Node
from stack.ir.traits import choice, converts, equates, multiplies, splat, spread
from stack.passes.positions.index_maps import affine
from stack.passes.rules.dot_layout import Axes, dot_axes
from stack.rewrite.check import FINITE
from stack.rewrite.engine import Scope, on


@on("dot", inexact=FINITE)
def diagonal_operand(node: Node, op: Builder, scope: Scope) -> Node | None:
    """dot(select(i = k, v, 0), b) is v times b, with b indexed by i."""
    inputs, output = dot_axes(node)
    sizes = {
        n: s
        for names, a in zip(inputs, node.args, strict=True)
        for n, s in zip(names, a.shape, strict=True)
    }
    contracted = [n for n in inputs[0] if n in inputs[1] and n not in output]
    if len(contracted) != 1:
        return None
    (k,) = contracted
    for side in (0, 1):
        other, names = inputs[1 - side], inputs[side]
        for i in names:
            if i in other or i not in output or sizes[i] != sizes[k]:
                continue
            iter_vars = {n: symbol(f"d{j}", 0, _last(sizes[n])) for j, n in enumerate(names)}
            value = _on_diagonal(
                node.args[side], tuple(iter_vars[n] for n in names), iter_vars[i], iter_vars[k]
            )
            row = None if value is None else _row(value, names, i, k)
            if row is None:
                continue
            moved = [i if n == k else n for n in other]
            factors = [
                spread_by_name(converted(part, node.dtype), own, output, node.shape)
                for part, own in (row, (node.args[1 - side], moved))
            ]
            return make("mul", factors)
    return None


def _last(size: Dim) -> int:
    return size - 1 if isinstance(size, int) and size > 1 else 1


def _on_diagonal(node: Node, index: Index, i: Dim, k: Dim) -> Node | None:
    """Returns the diagonal i = k of a matrix, over all axes; None if it is not diagonal."""
    if converts(node) and node.args[0].dtype.kind == "b":
        if _is_diagonal(node.args[0], index, i, k):
            return filled(constant(1, node.dtype), node)
        return None
    chosen = choice(node)
    if chosen is not None and splat(chosen.no) == 0:
        return filled(chosen.yes, node) if _is_diagonal(chosen.test, index, i, k) else None
    if multiplies(node):
        for part, other in (node.args, node.args[::-1]):
            found = _on_diagonal(part, index, i, k) if part.tensor.rank else None
            if found is not None and splat(found) == 1:
                return filled(other, node)
    return None


def _is_diagonal(test: Node, index: Index, i: Dim, k: Dim) -> bool:
    """True if a condition on an element is the test i = k, so it selects a matrix's diagonal.

    `index` is the index of the element, with `i` and `k` as two of its variables.
    """
    while ops.is_whole_view(test):
        index = ops.pull(test, index)[0]
        test = test.args[0]
    if not equates(test) or not test.tensor.rank:
        return False
    sides = [affine(a, index if a.tensor.rank else ()) for a in test.args]
    return sides in ([i, k], [k, i])


def _row(value: Node, names: Axes, i: str, k: str) -> tuple[Node, Axes] | None:
    """Returns a value without axis k, or without i and with k renamed to i; None if it has both."""
    axes = spread(value)
    if axes is None:
        return None
    own = [names[a] for a in axes]
    if i in own and k in own:
        return None
    return value.args[0], [i if n == k else n for n in own]
