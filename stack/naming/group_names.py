"""Names of groups that people know: "attention", "matmul + bias + GELU", "RMS norm".

A name has parts, and each part follows from the dataflow of the group: which reduction
depends on which, along which axis, and which scalar function a chain of ops computes. Neither names
of values nor the spelling of a formula count. What no part covers is named by its op.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from stack.ir.equivalence import cached_by_class
from stack.ir.node import Node
from stack.ir.ops import is_view, lookup
from stack.ir.traits import (
    converts,
    fold_of,
    in_windows,
    is_contraction,
    is_elementwise,
    is_group,
    is_input,
    is_number,
    is_part,
    is_reduction,
    is_running,
    is_stream,
    multiplies,
    negative_of,
    reads_by_data,
    repeats,
    signs,
    writes_by_data,
)
from stack.naming.group_flow import GroupFlow
from stack.naming.known_functions import function_name
from stack.naming.named_reductions import Part, means, norms, softmaxes

MOST = 4  # parts of a name
_HEAVY, _LIGHT, _MOVE = 2, 1, 0  # a light part is left out of a long name, a move of any other name


class _Named(NamedTuple):
    """A part of a name: its last node, to order parts, and how much it matters."""

    at: int
    text: str
    weight: int


@cached_by_class
def group_name(step: Node) -> str:
    """Returns the name of what a group or a single op computes, such as "matmul + bias + GELU"."""
    if not is_group(step):
        return _op_name(step)
    flow = GroupFlow(step)
    place = {node: i for i, node in enumerate(flow.nodes)}
    named: list[_Named] = []
    covered: set[Node] = set()

    def cover(parts: Iterable[Part], weight: int = _HEAVY) -> None:
        for part in parts:
            fresh = part.nodes - covered
            if fresh:
                covered.update(part.nodes)
                named.append(_Named(place.get(part.anchor, -1), part.text, weight))

    cover(softmaxes(flow))
    cover(norms(flow, covered))
    cover(_rotations(flow, covered))
    cover(means(flow, covered))
    for part in _functions(flow, covered):
        cover([part], _HEAVY if len(part.nodes) > 1 else _LIGHT)
    for node in flow.nodes:
        if node not in covered and not (is_stream(step) and _is_guard(flow, node)):
            named.append(_Named(place[node], _op_name(node), _weight(node)))
    return _joined(named)


def _joined(named: Sequence[_Named]) -> str:
    """Joins parts in program order. A repeated part is named once, and a long name keeps the parts
    that matter.
    """
    ordered = sorted(named)
    most = max((n.weight for n in ordered), default=_MOVE)
    shown = [n for n in ordered if n.weight >= min(most, _LIGHT)]
    texts = list(dict.fromkeys(n.text for n in shown))
    if len(texts) > MOST and most == _HEAVY:
        texts = list(dict.fromkeys(n.text for n in shown if n.weight == _HEAVY))
    if len(texts) > MOST and most == _LIGHT:
        return "elementwise"
    if len(texts) > MOST:
        texts = [*texts[: MOST - 1], "…"]
    return " + ".join(texts) or "copy"


def _weight(node: Node) -> int:
    if is_view(node) or converts(node):
        return _MOVE
    return _LIGHT if is_elementwise(node) or negative_of(node) is not None else _HEAVY


def _is_guard(flow: GroupFlow, node: Node) -> bool:
    """True if a node of a stream only guards its running values, as against an infinite maximum."""
    return is_elementwise(node) and not _reaches(flow, node)


def _reaches(flow: GroupFlow, node: Node) -> bool:
    return any(flow.depends(r, node) for r in flow.results)


def _op_name(node: Node) -> str:
    """Returns the name of one op, in the words of frameworks."""
    if is_contraction(node):
        return _contraction_name(node)
    if is_running(node):
        return f"cumulative {node.attrs.get('kind', node.op)}"
    if is_reduction(node):
        return fold_of(node)
    if lookup(node.op).kind == "reduction" and "kind" in node.attrs:
        return f"arg{node.attrs['kind']}"
    if reads_by_data(node):
        return "gather"
    if writes_by_data(node):
        return "scatter"
    if signs(node) == (1, 1):
        return "bias" if _has_bias(node) else "add"
    return node.op.replace("_", " ")


def _contraction_name(node: Node) -> str:
    """Returns "convolution" if the contraction reads windows of its operand, else "matmul"."""
    read = [a for a in node.args if in_windows(_unmoved(a))]
    return "convolution" if read or lookup(node.op).windows is not None else "matmul"


def _unmoved(node: Node) -> Node:
    """Skips views and conversions, apart from those that read windows."""
    while (is_view(node) or converts(node)) and not in_windows(node) and node.args:
        node = node.args[0]
    return node


def _has_bias(node: Node) -> bool:
    """True if a sum adds an operand that is the same for all rows: a parameter, broadcast."""
    return any(repeats(a) and is_input(_unmoved(a)) for a in node.args)


def _rotations(flow: GroupFlow, covered: set[Node]) -> list[Part]:
    """Finds rotary embeddings: x * c + r * s, where r is x with its halves swapped, one negated."""
    found: list[Part] = []
    for node in flow.nodes:
        if signs(node) != (1, 1) or node in covered:
            continue
        left, right = map(flow.seen_through, flow.args(node))
        for plain, turned in ((left, right), (right, left)):
            if not (multiplies(plain) and multiplies(turned)):
                continue
            for halves in map(flow.seen_through, flow.args(turned)):
                whole = _swapped(flow, halves)
                if whole and whole in map(flow.seen_through, flow.args(plain)):
                    nodes = flow.between(whole, node) - {whole}
                    found.append(Part("rotary embedding", node, nodes | {node}))
    return found


def _swapped(flow: GroupFlow, node: Node) -> Node | None:
    """Returns the value whose two halves a concatenation swaps, with one of them negated; None if
    the node is something else.
    """
    args = [flow.seen_through(a) for a in flow.args(node)]
    if is_elementwise(node) or is_contraction(node) or len(args) != 2:
        return None
    parts = [flow.seen_through(negative_of(a) or a) for a in args]
    flips = [negative_of(a) is not None for a in args]
    if flips[0] == flips[1] or not all(map(is_part, parts)) or parts[0] is parts[1]:
        return None
    if parts[0].type != parts[1].type:
        return None
    wholes = {flow.seen_through(flow.args(p)[0]) for p in parts}
    return wholes.pop() if len(wholes) == 1 else None


def _functions(flow: GroupFlow, covered: set[Node]) -> list[Part]:
    """Finds the longest chains of elementwise ops that are a known function of one value."""
    found: list[Part] = []
    taken = set(covered)
    for end in reversed(flow.nodes):
        if end in taken or not is_elementwise(end) or converts(end):
            continue
        for start in _sources(flow, end):
            text = function_name(flow, start, end)
            nodes = {n for n in flow.between(start, end) if n is not start}
            if text and not nodes & taken:
                own = nodes | {n for n in flow.before(end) - {start} if is_number(n)}
                found.append(Part(text, end, own))
                taken |= own
                break
    return found


def _sources(flow: GroupFlow, end: Node) -> list[Node]:
    """Returns the values of which `end` may be a scalar function, the farthest first.

    They are those through which all paths from other values to `end` lead.
    """
    frontier = {end}
    found: list[Node] = []
    order = {n: i for i, n in enumerate(flow.nodes)}
    while True:
        last = max(frontier, key=lambda n: order.get(n, -1))
        frontier.discard(last)
        if last not in order or not (is_elementwise(last) or is_view(last)):
            break
        frontier |= {a for a in flow.args(last) if not is_number(a)}
        if not frontier:
            break
        if len(frontier) == 1:
            found.append(next(iter(frontier)))
    return found[::-1]
