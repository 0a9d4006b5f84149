"""The view that the streaming rewrite has of a block: users, order, axis rules, reductions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

from stack.ir import ops
from stack.ir.dim import Dim
from stack.ir.equivalence import cached_by_class
from stack.ir.node import Block, Node, topological
from stack.ir.traits import (
    converts,
    fold_of,
    is_alias,
    is_contraction,
    is_elementwise,
    is_formula,
    is_input,
    is_known,
    reads_by_data,
    reinterprets,
    shows,
)
from stack.ir.types import TensorType
from stack.passes.streaming.terms import K, Names

# regions of walks from a value along an axis of a size, or from a reduction: see `known_region`
Probes = dict[Any, list[Any]]


class Downstream:
    """A set of nodes closed under users, as a bit mask of positions in the block."""

    def __init__(self, order: Sequence[Node], place: Mapping[Node, int], bits: int) -> None:
        self._order, self._place, self._bits = order, place, bits

    def __contains__(self, node: object) -> bool:
        place = self._place.get(node) if isinstance(node, Node) else None
        return place is not None and bool(self._bits >> place & 1)

    def __iter__(self) -> Iterator[Node]:
        return (node for node in self._order if node in self)

    def isdisjoint(self, nodes: Iterable[Node]) -> bool:
        """True if none of the nodes is in the set."""
        return not any(node in self for node in nodes)


class Graph:
    """A closed block: order, users, and dependences.

    `probes` are shared with the graph before a step: they are valid for equal nodes of every block.
    """

    def __init__(self, block: Block, probes: Probes | None = None) -> None:
        self.probes: Probes = {} if probes is None else probes
        self.regions: Probes = {}  # of reductions that may join a stream
        self.block = block
        self.nodes = block.nodes
        self.order = (*block.params, *block.nodes)
        self.place = {n: i for i, n in enumerate(self.order)}
        self.results = frozenset(block.results)
        self.users: dict[Node, list[Node]] = {}
        for node in self.nodes:
            for arg in dict.fromkeys(node.args):
                self.users.setdefault(arg, []).append(node)
        self.apart: dict[object, Any] = {}  # streams by dots and reductions: see `Stream._apart`
        self._generated: dict[Node, bool] = {}
        self._reached: dict[Dim | None, dict[Node, int]] = {}

    def name(self, node: Node) -> str:
        """Returns the name of a node in messages."""
        if is_input(node):
            return f"%{node.attrs['name']}"
        return f"%{self.block.names.get(node, node.op)}"

    def lines(self, nodes: Iterable[Node]) -> tuple[str, ...]:
        """Returns the source lines of nodes, without duplicates."""
        return tuple(dict.fromkeys(x for n in nodes for x in self.block.locs.get(n, ())))

    def after(self, roots: Iterable[Node], extent: Dim | None = None) -> Downstream:
        """Returns the nodes and everything computed from them.

        With `extent`, only what elementwise ops, views, gathers, and reductions over an axis of
        that size compute from them.
        """
        if extent not in self._reached:
            found = self._reached[extent] = dict[Node, int]()
            for node in reversed(self.order):
                bits = 1 << self.place[node]
                for user in self.users.get(node, ()):
                    own = reduced_value(user) if extent is not None else None
                    is_along = own is not None and own[0] == extent
                    if extent is None or is_along or moves(user) or reads_by_data(user):
                        bits |= found[user]
                found[node] = bits
        bits = 0
        for root in roots:
            bits |= self._reached[extent][root]
        return Downstream(self.order, self.place, bits)

    @cached_property
    def _sums_of_dots(self) -> list[tuple[int, int, Node]]:
        """Elementwise values of dots that depend on no other reduction, such as the residual of a
        model.

        Returns for each its position, the position until which it is in memory, and the value. That
        is the position of its last reader. It is unbounded if one of its dots is joined with the
        value again.
        """
        rows: set[Node] = set()
        made: dict[Node, frozenset[Node]] = {}  # with their dots
        waiting: set[Node] = set()
        for node in self.nodes:
            own = [a for a in node.args if a in made]
            if is_contraction(node):
                made[node] = frozenset((node,))
            elif not rows.isdisjoint(node.args) or fold_of(node):
                rows.add(node)
            elif moves(node) and own:
                dots = made[node] = frozenset[Node]().union(*(made[a] for a in own))
                waiting.update(a for a in own if not self.after((a,)).isdisjoint(dots - made[a]))
        end = len(self.order)
        place = self.place.__getitem__
        found: list[tuple[int, int, Node]] = []
        for node in made:
            stays = node in waiting or node in self.results
            last = end if stays else max(map(place, self.users.get(node, ())), default=0)
            found.append((place(node), last, node))
        return found

    def read_past(self, sink: Node) -> frozenset[Node]:
        """Returns sums of dots before a node that are in memory at that node anyway."""
        here = self.place[sink]
        return frozenset(n for own, last, n in self._sums_of_dots if own < here < last)

    def is_generated(self, node: Node) -> bool:
        """True if a value is computed from positions and numbers alone."""
        if node not in self._generated:
            for n in topological((node,), lambda n: n not in self._generated):
                leaf = is_formula(n)
                inner = bool(n.args) and moves(n) and all(self._generated[a] for a in n.args)
                self._generated[n] = leaf or inner
        return self._generated[node]


@cached_by_class
def keeps_its_value(node: Node) -> bool:
    """True for an elementwise op whose value does not change in a wider element type."""
    return is_elementwise(node) and not reinterprets(node)


@cached_by_class
def moves(node: Node) -> bool:
    """True if a node is an elementwise op that keeps its value in a wider element type, or a view
    of its whole operand."""
    return keeps_its_value(node) or ops.is_whole_view(node)


def read_through(node: Node) -> bool:
    """True if a dot can read an operand through a node: a view, or a cast that loads no more bytes.

    A value that a kernel computes and narrows is stored narrow, since it is read many times.
    """
    if not (converts(node) and node.dtype.is_float):
        return shows(node)
    source = node.args[0]
    while shows(source):
        source = source.args[0]
    return node.dtype.bits >= node.args[0].dtype.bits or is_input(source) or is_known(source)


def finishes(node: Node) -> bool:
    """True if an op may follow the loop, each element computed from one element."""
    if not isinstance(node.type, TensorType):
        return False
    if is_alias(node):  # only axes of one element may come or go
        first, second = ([n for n in v.shape if n != 1] for v in (node, *node.args))
        return first == second
    return moves(node)


@cached_by_class
def reduced_value(node: Node) -> tuple[Dim, tuple[Names, ...], Names] | None:
    """Returns the size of the one axis that a node reduces, and names of operand and result axes.

    Reductions are those over one axis, contractions of one, and a `gather` that picks one element
    along an axis for each row.
    """
    picks = reads_by_data(node)
    rule = ops.rule_of(node) if fold_of(node) or picks else None
    if rule is None:
        return None
    if picks:
        marked = [a.names[0] for a in rule.inputs[0] if a.mark == "!"]
        if len(marked) != 1 or len(node.args) != 2:
            return None
        gone = marked[0]
    elif len(rule.reduced) == 1:
        (gone,) = rule.reduced
    else:
        return None
    # K is the name of the streamed axis, so another axis of that name is renamed
    kept = {K: "kept", gone: K}
    *named, result = (
        tuple(kept.get(a.names[0], a.names[0]) for a in axes)
        for axes in (*rule.inputs, rule.outputs[0])
    )
    if is_contraction(node) and not all(K in names for names in named):
        return None
    holder = next(n for n in named if K in n)
    size = node.args[named.index(holder)].shape[holder.index(K)]
    return size, tuple(named), result
