"""Dataflow of one group: its nodes in order, and the nodes that each of them depends on.

The blocks of a `stream` are joined: a parameter of its last block is the result of its first block
that it stands for. So a loop with running values reads as the computation that it replaces.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from stack.ir.node import Node
from stack.ir.traits import (
    axis_order,
    converts,
    is_alias,
    is_elementwise,
    is_group,
    is_input,
    is_item,
    is_known,
    is_stream,
    spread,
)
from stack.ir.types import TensorType


class GroupFlow:
    """The nodes of a group or of a single op, and what they depend on.

    Attributes:
        nodes: the nodes that compute something, in order; no parameters, constants or items.
        results: the nodes whose values leave the group.
    """

    def __init__(self, step: Node) -> None:
        self.nodes: list[Node] = []
        self._values: dict[Node, Node] = {}  # parameters of a stream's last block
        self._before: dict[Node, frozenset[Node]] = {}
        if is_stream(step):
            first, last = step.blocks[0], step.blocks[-1]
            self._values = dict(zip(last.params, first.results, strict=False))
            self._add(first.nodes)
            self._add(last.nodes)
            self.results = list(last.results)
        elif is_group(step):
            self._add(step.blocks[0].nodes)
            self.results = list(step.blocks[0].results)
        else:
            self._add([step])
            self.results = [step]

    def _add(self, nodes: Iterable[Node]) -> None:
        for node in nodes:
            args = self.args(node)
            found = {*args, *(b for a in args for b in self._before.get(a, ()))}
            self._before[node] = frozenset(found)
            if not (is_input(node) or is_known(node) or is_item(node)):
                self.nodes.append(node)

    def args(self, node: Node) -> list[Node]:
        """Returns the operands of a node; those that are results of a stream are resolved."""
        return [self._values.get(a, a) for a in node.args]

    def depends(self, node: Node, other: Node) -> bool:
        """True if `node` is `other`, or is computed from it."""
        return node is other or other in self._before.get(node, ())

    def before(self, node: Node) -> frozenset[Node]:
        """Returns everything that a node is computed from, without the node."""
        return self._before.get(node, frozenset())

    def between(self, start: Node, end: Node) -> set[Node]:
        """Returns the nodes on the paths from `start` to `end`, both included."""
        inner = self.before(end)
        return {n for n in (*inner, end) if self.depends(n, start)}

    def avoiding(self, node: Node, barrier: Node) -> set[Node]:
        """Returns everything that `node` is computed from without passing through `barrier`."""
        found: set[Node] = set()
        pending = [node]
        while pending:
            at = pending.pop()
            for arg in self.args(at):
                if arg is not barrier and arg not in found:
                    found.add(arg)
                    pending.append(arg)
        return found

    def users(self, node: Node) -> Iterator[Node]:
        """Yields the nodes that read a node directly."""
        return (n for n in self.nodes if node in self.args(n))

    def seen_through(self, node: Node) -> Node:
        """Skips reshapes and conversions: returns the value that a node shows unchanged."""
        while is_alias(node) or converts(node):
            node = self.args(node)[0]
        return node


def followed_axis(flow: GroupFlow, start: Node, axis: int, end: Node) -> int:
    """Returns the axis of `end` that is axis `axis` of `start`, or -1 if it is not kept whole.

    Follows elementwise ops, reshapes, transposes and broadcasts.
    """
    if end is start:
        return axis
    if not isinstance(end.type, TensorType):
        return -1
    for arg in flow.args(end):
        if not flow.depends(arg, start) or not isinstance(arg.type, TensorType):
            continue
        at = followed_axis(flow, start, axis, arg)
        if at < 0:
            return -1
        if is_elementwise(end):
            return at if arg.type.rank == end.type.rank else -1
        if is_alias(end):
            return _reshaped(arg.type.shape, at, end.type.shape)
        order, places = axis_order(end), spread(end)
        if order is not None:
            return order.index(at)
        return places[at] if places is not None else -1
    return -1


def _reshaped(before: Iterable[object], axis: int, after: Iterable[object]) -> int:
    """Returns the axis of shape `after` that has the size of an axis of `before`, and as many
    elements in front; -1 if a reshape splits or merges the axis.
    """
    old, new = list(before), list(after)
    kept = [d for d in old[:axis] if d != 1]
    for i, size in enumerate(new):
        if size == old[axis] and _product([d for d in new[:i] if d != 1]) == _product(kept):
            return i
    return -1


def _product(sizes: Iterable[object]) -> object:
    known = 1
    named: list[str] = []
    for size in sizes:
        if isinstance(size, int):
            known *= size
        else:
            named.append(str(size))
    return known, tuple(sorted(named))
