"""Values that cost no more to compute again than to keep: elementwise, of no larger values.

Segments between collectives do not pass them on, and stages of a pipeline do not keep them from the
forward to the backward pass.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from stack.ir import ops
from stack.ir.node import Node, is_inline
from stack.ir.traits import is_formula, mixes, reads_by_data


def sources_of(order: Sequence[Node], inner: Collection[Node]) -> dict[Node, frozenset[Node]]:
    """Maps each node to the values that a reader takes in order to use it: the node itself, or the
    values from which the reader recomputes it, if these are no larger.

    `inner`: other values that may be recomputed, those of streams.
    """
    found: dict[Node, frozenset[Node]] = {}
    for node in order:
        found[node] = frozenset({node})
        is_mapped = ops.lookup(node.op).kind in ("elementwise", "movement") and not mixes(node)
        if node in inner or is_formula(node) or (is_mapped and not reads_by_data(node)):
            args = [a for a in node.args if not is_inline(a)]
            read = frozenset[Node]().union(*(found.get(a, {a}) for a in args))
            if sum(map(size_of, read)) <= size_of(node):
                found[node] = read
    return found


def cheap_to_recompute(order: Sequence[Node]) -> set[Node]:
    """Returns the nodes that are elementwise functions of values which together are smaller, as a
    mask of positions is: they cost less to recompute than to store.
    """
    sources = sources_of(order, ())
    return {n for n in order if sum(map(size_of, sources[n])) < size_of(n)}


def size_of(node: Node) -> int:
    """Returns the bytes of a value, or of all items of a tuple."""
    return sum(int(str(t.bytes)) for t in node.types)
