"""Keeps the results of one stream in one segment of a rank's program.

Attention computes its row maxima, its row sums and their use in one pass over the scores if all
operands are there. If the values arrive later than queries and keys, a program in the order of its
text computes the maxima and sums first, and the scores again when the values are there. The same
holds for the gradients of keys and values. So everything that a stream reads comes before it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter

from stack.ir.node import Node, is_inline
from stack.ir.traits import fold_of
from stack.mesh.ops import is_meeting

Needs = Mapping[Node, tuple[Node, ...]]


def stream_needs(order: Sequence[Node], inner: Collection[Node]) -> dict[Node, tuple[Node, ...]]:
    """Maps nodes to values that should be computed before them, so that each stream is computed
    at once.

    A stream is a connected set of `inner` nodes, see `stack.rewrite.stream_candidates`, with the
    reductions that read them. Reductions of round 1 depend on those of round 0 by other reductions
    or collectives. Attention has two rounds: the forward pass, and the gradients of queries, keys
    and values. A node of a round needs all values that the round reads. What reads a finished round
    needs all its reductions.
    """
    found: dict[Node, tuple[Node, ...]] = {}
    for stream in connected(order, inner):
        level = _levels(order, stream)
        rounds: dict[int, list[Node]] = {}
        for node in order:
            if node in stream or not stream.isdisjoint(node.args):
                rounds.setdefault(level[node], []).append(node)
        for number, nodes in rounds.items():
            args = dict.fromkeys(a for n in nodes for a in n.args if not is_inline(a))
            read = tuple(a for a in args if a not in stream and level.get(a, -1) < number)
            found.update(dict.fromkeys(nodes, read))
        for node in order:
            for number in {level.get(a, -1) for a in node.args} & {*rounds}:
                if level[node] > number and node not in stream and level[node] % 2:
                    reductions = [n for n in rounds[number] if n not in stream]
                    found[node] = (*found.get(node, ()), *reductions)
    return found


def in_stream_order(order: Sequence[Node], needs: Needs) -> list[Node]:
    """Returns the nodes so that all values in `needs` come before their node, otherwise in the same
    order. Unchanged if two streams need results of each other.
    """
    own = set(order)
    before = {n: [a for a in (*n.args, *needs.get(n, ())) if a in own] for n in order}
    try:
        TopologicalSorter(before).prepare()
    except CycleError:
        return list(order)
    found: dict[Node, None] = {}
    for node in order:
        pending = [node]
        while pending:
            left = [a for a in before[pending[-1]] if a not in found]
            if left:
                pending.append(left[0])
            else:
                found[pending.pop()] = None
    return list(found)


def connected(order: Sequence[Node], inner: Collection[Node]) -> Iterable[set[Node]]:
    """Returns the connected sets of `inner` nodes."""
    part: dict[Node, set[Node]] = {}
    for node in order:
        if node in inner:
            own = {node}
            for arg in node.args:
                if arg in inner and part[arg] is not own:
                    own |= part[arg]
            part.update(dict.fromkeys(own, own))
    return list({id(nodes): nodes for nodes in part.values()}.values())


def _levels(order: Sequence[Node], stream: set[Node]) -> dict[Node, int]:
    """Returns twice the round of each node of a stream and of values between these, as row maxima
    that are subtracted from scores. Values computed from a finished round have the next odd number,
    and values that depend on no result of the stream have -1.
    """
    level: dict[Node, int] = {}
    for node in order:
        number = max((level.get(a, -1) for a in node.args), default=-1)
        if node in stream or not stream.isdisjoint(node.args):
            number += number % 2  # an odd number, -1 among them, begins a round
        elif number >= 0 and (fold_of(node) or is_meeting(node)):
            number |= 1
        level[node] = number
    return level
