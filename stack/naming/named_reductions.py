"""Softmax, attention and normalizations, found by how the reductions of a group depend on each
other.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from stack.ir.node import Node
from stack.ir.ops import is_view, rule_of
from stack.ir.traits import (
    converts,
    divides,
    fold_of,
    is_contraction,
    is_elementwise,
    is_exponential,
    is_input,
    is_number,
    is_reduction,
    multiplies,
    number,
    repeats,
    signs,
    unconverted,
)
from stack.naming.group_flow import GroupFlow, followed_axis


class Part(NamedTuple):
    """A part of a group that has a name: its nodes, and the node that gives its place in order."""

    text: str
    anchor: Node
    nodes: set[Node]


# ---- softmax and attention


def softmaxes(flow: GroupFlow) -> Iterator[Part]:
    """Finds softmaxes: exp(x - max x), and its sum, along one axis; with what follows from them."""
    for total in flow.nodes:
        if not (is_reduction(total) and fold_of(total) == "sum"):
            continue
        weights = flow.seen_through(flow.args(total)[0])
        if not is_exponential(weights):
            continue
        axes = {
            followed_axis(flow, weights, a, flow.args(total)[0]): a
            for a in range(weights.tensor.rank)
        }
        reduced = [axes.get(a, -1) for a in _axes(total)]
        for top in flow.before(weights):
            if is_reduction(top) and fold_of(top) == "max":
                scores = flow.seen_through(flow.args(top)[0])
                again = [followed_axis(flow, scores, a, weights) for a in _source_axes(flow, top)]
                if scores in flow.avoiding(weights, top) and again == reduced and -1 not in again:
                    yield _softmax(flow, scores, top, weights, total, reduced)
                    break


def _axes(node: Node) -> list[int]:
    """Returns the axes that a reduction drops."""
    rule = rule_of(node)
    assert rule is not None, "a reduction has one"
    gone = set(rule.reduced)
    return [i for i, axis in enumerate(rule.inputs[0]) if gone.intersection(axis.names)]


def _source_axes(flow: GroupFlow, node: Node) -> list[int]:
    """Returns the axes that a reduction drops, of the value behind reshapes and conversions."""
    read = flow.args(node)[0]
    source = flow.seen_through(read)
    known = {followed_axis(flow, source, a, read): a for a in range(source.tensor.rank)}
    return [known.get(a, -1) for a in _axes(node)]


def _softmax(
    flow: GroupFlow, scores: Node, top: Node, weights: Node, total: Node, axes: list[int]
) -> Part:
    """Names a softmax by the use of its weights: a softmax, attention, or a log of the sum."""
    nodes = flow.between(scores, weights) - {scores}
    nodes |= {top, total}
    after = [n for n in flow.nodes if flow.depends(n, top)]
    summed = [n for n in after if is_contraction(n) and _sums(flow, n, weights, axes)]
    if summed:
        nodes |= {n for n in after if _is_scaling(flow, n, summed, total)}
        scored = [n for n in (*flow.before(scores), scores) if is_contraction(n)]
        if scored:
            last = max(scored, key=flow.nodes.index)
            nodes |= {scores, last, *summed}
            # the mask and the scale, up to the product of queries and keys
            nodes |= {n for n in flow.avoiding(scores, last) if not flow.depends(last, n)}
            return Part("attention", last, nodes)
        return Part("softmax + matmul", summed[0], nodes | set(summed))
    logs = [n for n in after if n.op in ("log", "log2") and not flow.depends(weights, n)]
    for log in logs:
        if flow.depends(log, total):
            sums = [n for n in after if signs(n) and flow.depends(n, log)]
            is_whole = any(n.tensor.size == scores.tensor.size for n in sums)
            return Part("log-softmax" if is_whole else "logsumexp", log, {*nodes, log, *sums})
    scaled = [n for n in after if divides(n) and flow.depends(flow.args(n)[1], total)]
    if scaled:
        inner = {n for n in after if flow.depends(scaled[0], n)}
        return Part("softmax", scaled[0], nodes | inner | {scaled[0]})
    return Part("sum of exp(x - max)", total, nodes)


def _sums(flow: GroupFlow, node: Node, weights: Node, axes: list[int]) -> bool:
    """True if a contraction sums over all of these axes of the softmax weights, and no others."""
    rule = rule_of(node)
    assert rule is not None, "a contraction has one"
    for arg, side in zip(flow.args(node), rule.inputs, strict=False):
        if not flow.depends(arg, weights):
            continue
        at = [followed_axis(flow, weights, a, arg) for a in axes]
        gone = [i for i, axis in enumerate(side) if set(axis.names) & set(rule.reduced)]
        if -1 not in at and sorted(at) == gone:
            return True
    return False


def _is_scaling(flow: GroupFlow, node: Node, summed: list[Node], total: Node) -> bool:
    """True if a node after a softmax only divides by the sum, or guards that division."""
    if is_contraction(node) or (is_reduction(node) and node is not total):
        return node in summed
    inputs = [n for n in flow.before(node) if is_input(n)]
    own = {n for root in (*summed, total) for n in flow.before(root)}
    return all(n in own for n in inputs) and (is_elementwise(node) or is_view(node))


# ---- norms


def norms(flow: GroupFlow, covered: set[Node]) -> Iterator[Part]:
    """Finds normalizations: x divided by the root of a sum of squares of x, along some axes."""
    for total in flow.nodes:
        if total in covered or not (is_reduction(total) and fold_of(total) == "sum"):
            continue
        square = unconverted(flow.seen_through(flow.args(total)[0]))
        base = _squared(flow, square)
        if base is None:
            continue
        roots = [n for n in flow.nodes if _is_root(n) and flow.depends(n, total)]
        for root in roots[:1]:
            result = _normalized(flow, base, root)
            if result is not None:
                yield _norm(flow, base, total, root, result)


def _squared(flow: GroupFlow, node: Node) -> Node | None:
    """Returns the x of x * x; None for other nodes."""
    if not multiplies(node):
        return None
    left, right = map(flow.seen_through, flow.args(node))
    return left if left is right else None


def _is_root(node: Node) -> bool:
    """True for the square root of a value, or its inverse: the ops that invert a square."""
    return node.op in ("sqrt", "rsqrt") or (
        node.op == "pow" and is_number(node.args[1]) and number(node.args[1]) in (-0.5, 0.5)
    )


def _normalized(flow: GroupFlow, base: Node, root: Node) -> Node | None:
    """Returns the first product or quotient of the squared value and its root, or of a value that
    the squared value is computed from; None if there is none.
    """
    sources = {base, *(n for n in flow.before(base) if is_input(n))}
    for node in flow.nodes:
        if not ((multiplies(node) or divides(node)) and flow.depends(node, root)):
            continue
        for arg, other in zip(flow.args(node), flow.args(node)[::-1], strict=True):
            made = {arg, *flow.before(arg)}
            if flow.depends(other, root) and root not in made and made & sources:
                return node
    return None


def _norm(flow: GroupFlow, base: Node, total: Node, root: Node, result: Node) -> Part:
    """Names a normalization by whether it subtracts a mean, and by its axes."""
    inside = {n for n in (*flow.before(root), *flow.before(result)) if is_reduction(n)} - {total}
    sources = {n for n in flow.before(base) if is_input(n)} or {base}
    means = [n for n in inside if fold_of(n) == "sum" and flow.before(n) & sources | {n} & sources]
    if means:
        text = "layer norm" if _is_trailing(total) else "batch norm"
    else:
        text = "RMS norm" if _is_averaged(flow, total, root) else "L2 norm"
    first = min((total, *means), key=flow.nodes.index)
    nodes = flow.between(total, result)
    for mean in means:
        nodes |= flow.between(mean, result)
    nodes |= flow.between(base, total) - {base} | (flow.between(first, base) if means else set())
    return Part(text, result, nodes | _affine(flow, result))


def _is_averaged(flow: GroupFlow, total: Node, root: Node) -> bool:
    """True if a sum is divided by the number of summed elements before the root."""
    size = 1
    for axis in _axes(total):
        dim = total.args[0].tensor.shape[axis]
        if not isinstance(dim, int):
            return False  # the number is not known, so neither is the scale
        size *= dim
    for node in flow.between(total, root):
        for value in filter(is_number, node.args):
            ratio = float(number(value)) * (1 / size if divides(node) else size)
            if (divides(node) or multiplies(node)) and abs(ratio - 1) < 1e-5:
                return True
    return False


def means(flow: GroupFlow, covered: set[Node]) -> Iterator[Part]:
    """Finds sums that are divided by the number of summed elements."""
    for total in flow.nodes:
        if total in covered or not (is_reduction(total) and fold_of(total) == "sum"):
            continue
        for node in flow.nodes:
            read = [flow.seen_through(a) for a in flow.args(node)]
            if total in read and _is_averaged(flow, total, node):
                yield Part("mean", total, {total, node})
                break


def _is_trailing(total: Node) -> bool:
    """True if a reduction drops the last axes of its operand."""
    axes, rank = _axes(total), total.args[0].tensor.rank
    return axes == list(range(rank - len(axes), rank))


def _affine(flow: GroupFlow, result: Node) -> set[Node]:
    """Returns the product with a weight and the sum with a bias that follow a norm."""
    found: set[Node] = set()
    at = result
    while True:
        users = list(flow.users(at))
        if len(users) != 1:
            return found
        user = users[0]
        others = [a for a in flow.args(user) if a is not at]
        is_weight = (multiplies(user) or signs(user)) and all(map(_is_broadcast, others))
        if not (is_weight or converts(user) or is_view(user)):
            return found
        found.add(user)
        at = user


def _is_broadcast(node: Node) -> bool:
    """True if a value is a parameter that is repeated along an axis."""
    node = unconverted(node)
    while is_view(node) and not repeats(node):
        node = node.args[0]
    return repeats(node) and is_input(unconverted(node.args[0]))
