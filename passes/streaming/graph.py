"""The view that the streaming rewrite has of a block: users, order, axis rules, reductions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Generic, Protocol, TypeVar

from stack.ir import ops
from stack.ir.axes import Axis
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
from stack.passes.streaming.terms import K, Names, TermValue

# for each axis of each operand: the number of the result's axis, or a name if there is none
Sources = tuple[tuple[int | str, ...], ...]
# the operands of a value, and the sizes of all axes that are named
Operands = tuple[list[TermValue], dict[str, Dim]]


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


@dataclass(frozen=True)
class Probe:
    """The result of a walk back from the operands of reductions along the streamed axis.

    Attributes:
        passed: the values met, each with the number of its streamed axis.
        comes_back: True if the walk meets other reductions over the axis.
        largest_dot: elements of the largest dot that has the axis; 0 for none.
        met: see `Region`.
    """

    passed: frozenset[tuple[Node, int]]
    comes_back: bool
    largest_dot: int
    met: frozenset[Node]


class Walked(Protocol):
    """The result of a walk, with the nodes that it asked about: are they held, or outside?"""

    @property
    def met(self) -> Set[Node]: ...


Found = TypeVar("Found", bound=Walked)


class Walks(Generic[Found]):
    """Results of walks, by where they started.

    A walk for other sets of held nodes and of nodes outside finds the same if the nodes that it met
    are in the same of these sets.
    """

    def __init__(self) -> None:
        self._known: dict[object, list[tuple[Set[Node], Set[Node], Found]]] = {}

    def find(self, start: object, held: Set[Node], outside: Set[Node]) -> Found | None:
        """Returns the result of a walk; None if no walk before was the same."""
        for own, other, found in self._known.get(start, ()):
            if found.met & held == own and found.met & outside == other:
                return found
        return None

    def keep(self, start: object, held: Set[Node], outside: Set[Node], found: Found) -> None:
        """Adds the result of a walk."""
        known = self._known.setdefault(start, [])
        known.append((found.met & held, found.met & outside, found))


Probes = Walks[Probe]


class Graph:
    """A closed block: order, users, and dependences.

    `probes` are shared with the graph before a step: they are valid for equal nodes of every block.
    """

    def __init__(self, block: Block, probes: Probes | None = None) -> None:
        self.probes = Probes() if probes is None else probes
        self.regions = Walks[Any]()  # of reductions that may join a stream: see `Candidate`
        self.block = block
        self.nodes = block.nodes
        self.order = (*block.params, *block.nodes)
        self.place = {n: i for i, n in enumerate(self.order)}
        self.results = frozenset(block.results)
        self.users: dict[Node, list[Node]] = {}
        for node in self.nodes:
            for arg in dict.fromkeys(node.args):
                self.users.setdefault(arg, []).append(node)
        self.dots: dict[Node, frozenset[Node]] = {}  # by reduction: see `stream.dots_of`
        self.apart: dict[object, Any] = {}  # streams by dots and reductions: see `Stream._apart`
        self._generated: dict[Node, bool] = {}
        self._operands: dict[TermValue, Operands] = {}
        self._along: dict[Dim, dict[Node, int]] = {}

    def plain_operands(self, value: TermValue) -> Operands | None:
        """Returns the operands of a value; None unless every axis is a single, unmarked one.

        An axis that does not come from the result gets a name of its own.
        """
        found = self._operands.get(value)
        if found is not None:
            return found
        node, names = value
        sources = _plain_sources(node)
        if sources is None:
            return None
        place = self.place.get(node, -1)
        sizes = dict(zip(names, node.shape))
        values: list[TermValue] = []
        for arg, axes in zip(node.args, sources):
            own = tuple([names[a] if isinstance(a, int) else f"{place}:{a}" for a in axes])
            sizes.update(zip(own, arg.shape))
            values.append(TermValue(arg, own))
        self._operands[value] = values, sizes
        return values, sizes

    def name(self, node: Node) -> str:
        """Returns the name of a node in messages."""
        if is_input(node):
            return f"%{node.attrs['name']}"
        return f"%{self.block.names.get(node, node.op)}"

    def lines(self, nodes: Iterable[Node]) -> tuple[str, ...]:
        """Returns the source lines of nodes, without duplicates."""
        return tuple(dict.fromkeys(x for n in nodes for x in self.block.locs.get(n, ())))

    @cached_property
    def _behind(self) -> dict[Node, int]:
        """Returns for each node the positions of all nodes computed from it, as bits."""
        return self._reached(lambda _: True)

    def _reached(self, passes: Callable[[Node], bool]) -> dict[Node, int]:
        """Returns for each node the positions of itself and of all nodes computed from it, as bits.

        Follows only users for which the predicate `passes` is true.
        """
        found: dict[Node, int] = {}
        for node in reversed(self.order):
            bits = 1 << self.place[node]
            for user in self.users.get(node, ()):
                if passes(user):
                    bits |= found[user]
            found[node] = bits
        return found

    def after(self, roots: Iterable[Node]) -> Downstream:
        """Returns the nodes and everything computed from them."""
        return self._union(self._behind, roots)

    def along(self, roots: Iterable[Node], extent: Dim) -> Downstream:
        """Returns nodes and all values computed from them by elementwise ops, views, gathers, and
        reductions over an axis of size `extent`."""

        def passes(node: Node) -> bool:
            found = reduced_value(node)
            is_reduced = found is not None and found[0] == extent
            return is_reduced or moves(node) or reads_by_data(node)

        if extent not in self._along:
            self._along[extent] = self._reached(passes)
        return self._union(self._along[extent], roots)

    def _union(self, reached: Mapping[Node, int], roots: Iterable[Node]) -> Downstream:
        bits = 0
        for root in roots:
            bits |= reached[root]
        return Downstream(self.order, self.place, bits)

    @cached_property
    def reductions(self) -> tuple[Node, ...]:
        """Returns the reductions over one axis, the last one first."""
        return tuple(n for n in reversed(self.nodes) if reduced_value(n) is not None)

    @cached_property
    def _sums_of_dots(self) -> list[tuple[int, int, Node]]:
        """Elementwise values of dots that depend on no other reduction, such as the residual of a
        model.

        Returns for each its position, the position until which it is in memory, and the value. That
        is the position of its last reader. It is unbounded if one of its dots is joined with the
        value again.
        """
        rows: set[Node] = set()
        made: dict[Node, int] = {}  # with the positions of their dots, as bits
        waiting: set[Node] = set()
        for node in self.nodes:
            own = [a for a in node.args if a in made]
            if is_contraction(node):
                made[node] = 1 << self.place[node]
            elif not rows.isdisjoint(node.args) or fold_of(node):
                rows.add(node)
            elif moves(node) and own:
                dots = 0
                for a in own:
                    dots |= made[a]
                made[node] = dots
                waiting.update(a for a in own if self._behind[a] & dots & ~made[a])
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
def _plain_sources(node: Node) -> Sources | None:
    rule = ops.rule_of(node)
    if rule is None:
        return None
    axes = [a for operand in (rule.outputs[0], *rule.inputs) for a in operand]
    if any(a.mark or len(a.names) != 1 for a in axes):
        return None
    places = {a.names[0]: i for i, a in enumerate(rule.outputs[0])}
    return tuple(tuple(places.get(a.names[0], a.names[0]) for a in o) for o in rule.inputs)


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
    if is_alias(node):
        return _lengths(node) == _lengths(node.args[0])
    return moves(node)


def _lengths(node: Node) -> list[Dim]:
    """Returns the sizes of a value's axes in order, without those of size 1."""
    return [size for size in node.shape if size != 1]


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
    named = tuple(tuple(K if n == gone else n for n in _plain(o, gone)) for o in rule.inputs)
    if is_contraction(node) and not all(K in names for names in named):
        return None
    holder = next(n for n in named if K in n)
    size = node.args[named.index(holder)].shape[holder.index(K)]
    return size, named, _plain(rule.outputs[0], gone)


def _plain(operand: tuple[Axis, ...], gone: str) -> Names:
    """Returns the names of an operand's axes.

    K is the name of the streamed axis, so an axis of that name is renamed unless it is `gone`, the
    reduced one.
    """
    names = (a.names[0] for a in operand)
    return tuple("kept" if n == K != gone else n for n in names)
