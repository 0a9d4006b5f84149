"""Counts the kernels of a stream: how often each matmul of a table that is not stored is computed.

A kernel of a stream keeps one block of its results and reads the tables tile by tile. So reductions
over the same axes of a table share a kernel, and those over other axes have one of their own. The
gradients of attention need two: those of keys and values are sums over queries, the gradient of
queries is a sum over keys. Both kernels compute the scores and the gradient of the probabilities.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from stack.ir.node import Node
from stack.ir.ops import is_whole_view, rule_of
from stack.ir.traits import fold_of, is_alias, is_contraction

Labels = tuple[object, ...]  # an identity for each dim of a value


def kernels_of(nodes: Iterable[Node], inner: Collection[Node]) -> dict[Node, int]:
    """Maps each matmul in `inner`, the values of streams, to the number of kernels that compute it.

    Two kernels differ in the table axes that they sum over. A matmul whose axes cannot be
    followed through a view counts once.
    """
    listed = list(nodes)
    labels = _labels(listed, inner)
    reads: dict[Node, set[frozenset[object]]] = {}
    for node in reversed(listed):
        own = reads.get(node, set())
        for number, arg in enumerate(node.args):
            if arg not in inner:
                continue
            if node in inner and not is_contraction(node):
                reads.setdefault(arg, set()).update(own)
            elif fold_of(node) or is_contraction(node):
                reads.setdefault(arg, set()).add(_summed(node, number, labels.get(arg)))
    return {n: max(1, len(reads.get(n, ()))) for n in listed if n in inner and is_contraction(n)}


def _summed(node: Node, number: int, labels: Labels | None) -> frozenset[object]:
    """Returns the labels of the axes of an operand that a reduction sums over; empty if unknown."""
    rule = rule_of(node)
    if labels is None or rule is None:
        return frozenset()
    kept = {name for made in rule.outputs for axis in made for name in axis.names}
    axes = zip(labels, rule.inputs[number], strict=True)
    return frozenset(label for label, axis in axes if kept.isdisjoint(axis.names))


def _labels(nodes: Iterable[Node], inner: Collection[Node]) -> dict[Node, Labels | None]:
    """Returns labels for the dims of tables: equal ones for the same axis; None if unknown."""
    found: dict[Node, Labels | None] = {}
    for node in nodes:
        if node not in inner:
            continue
        known = [found[a] for a in node.args if found.get(a) is not None and a in inner]
        if is_contraction(node) or not known:
            found[node] = tuple(range(len(node.shape)))
        elif is_whole_view(node):
            found[node] = _viewed(node, known[0])
        else:
            found[node] = known[0]
    return found


def _viewed(node: Node, labels: Labels | None) -> Labels | None:
    """Returns the labels of a view's dims, from those of its operand."""
    if labels is None:
        return None
    if not is_alias(node):
        rule = rule_of(node)
        assert rule is not None, "a view has one"
        names = [axis.names[0] for axis in rule.inputs[0]]
        by_name = dict(zip(names, labels, strict=True))
        return tuple(by_name.get(axis.names[0]) for axis in rule.outputs[0])
    old = [(n, x) for n, x in zip(node.args[0].shape, labels, strict=True) if n != 1]
    if [n for n, _ in old] != [n for n in node.shape if n != 1]:
        return None
    kept = iter([x for _, x in old])
    return tuple(None if n == 1 else next(kept) for n in node.shape)
