"""Values that a stream computes after its loop: of its states, and what only these values read.

A kernel has one tile of results, with the axes of the states. A value that is the product of a
broadcast state and another array has an axis of its own, and no place in that tile.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable
from heapq import heapify, heappop, heappush

from stack.ir import ops
from stack.ir.axes import Axis
from stack.ir.node import Node, is_inline
from stack.ir.traits import contractions, is_alias
from stack.passes.streaming.graph import Graph, finishes
from stack.passes.streaming.region import MAX_VALUES, Region
from stack.passes.streaming.terms import Names
from stack.rewrite.group import bytes_of


def finishing_nodes(
    region: Region, after: Container[Node], virtual: frozenset[Node], axes: FinishAxes
) -> set[Node]:
    """Returns nodes that can be computed from the states after the loop; adds their axes.

    Args:
        region: the collected region of the stream.
        after: the nodes computed from its states.
        virtual: values that stay out of memory, so that nothing reads them after the loop.
        axes: the axes of the states.
    """
    graph, members = region.graph, region.members
    finishing: set[Node] = set()
    pending = [graph.place[u] for m in members for u in graph.users.get(m, ())]
    heapify(pending)
    while pending and len(finishing) < MAX_VALUES:
        node = graph.order[heappop(pending)]
        if node in finishing or node in members:
            continue
        if not (finishes(node) or axes.regroups(node)):
            continue
        if all(
            a in finishing or a in members or (a not in after and a not in virtual)
            for a in node.args
        ):
            finishing.add(node)
            axes.add(node)
            for user in graph.users.get(node, ()):
                heappush(pending, graph.place[user])
    return finishing


def producers(region: Region, finishing: Collection[Node]) -> set[Node]:
    """Returns values that only `finishing` reads, and that cost less to compute after the loop than
    to write and read, such as rows that are added to the stream's own."""
    graph = region.graph
    inside = {v.node for v in region.visited}
    found: set[Node] = set()
    pending = sorted(finishing, key=graph.place.__getitem__)
    while pending and len(found) + len(finishing) < MAX_VALUES:
        for arg in pending.pop().args:
            if arg in found or arg in finishing or arg in inside or arg in region.members:
                continue
            if not _is_producer(graph, arg) or arg in graph.results:
                continue
            if all(u in finishing or u in found for u in graph.users[arg]):
                found.add(arg)
                pending.append(arg)
    return found


def _is_producer(graph: Graph, node: Node) -> bool:
    """True if a value is computed element by element from values that are cheaper to read than the
    value is to write and read."""
    if not node.args or not finishes(node):
        return False
    return sum(bytes_of(a) for a in node.args if not is_inline(a)) <= 2 * bytes_of(node)


# for each axis of a value the axes of states that it consists of, none for an axis of one element;
# None for an axis that no state has
Atoms = tuple[Names | None, ...]


class FinishAxes:
    """The axes of states in values that are computed from them.

    Args:
        region: the collected region of the stream.
    """

    def __init__(self, region: Region) -> None:
        self.region = region
        dots = contractions(region.members)
        columns = {a for dot in dots for a in region.atoms(tuple(region.columns(dot)))}
        merged = (region.atoms((name,)) for name in region.parts)
        self.merged = {atoms for atoms in merged if columns.isdisjoint(atoms)}
        self.known: dict[Node, Atoms] = {}
        for value in region.visited:
            if value.streams:
                self.known.setdefault(value.node, self._atoms(value.names))
        self.known |= {node: self._atoms(names) for node, names in region.members.items()}

    def add(self, node: Node) -> None:
        """Derives the axes of a node from those of its operands, which were added before."""
        found: dict[str, Names] = {}
        rule = ops.rule_of(node)
        if rule is None:
            return
        for axes, arg in zip(rule.inputs, node.args, strict=True):
            for axis, atoms in zip(axes, self.known.get(arg, ()), strict=False):
                if atoms is not None and not axis.mark:
                    found.update(self._bound(axis, atoms))
        sizes = zip(rule.outputs[0], node.shape, strict=True)
        self.known[node] = tuple(() if n == 1 else _joined(axis, found) for axis, n in sizes)

    def has_own(self, node: Node) -> bool:
        """True if every axis of a value is an axis of a state."""
        return None not in self.known.get(node, (None,))

    def regroups(self, node: Node) -> bool:
        """True if a node reshapes axes of states into groups that the loop has, too, such as heads
        that share keys into all heads. A tile has columns apart: not heads and their columns."""
        if not is_alias(node):
            return False
        self.add(node)
        groups = [a for a in self.known.get(node, ()) if a is not None]
        return self.has_own(node) and all(len(a) < 2 or a in self.merged for a in groups)

    def _atoms(self, names: Iterable[str]) -> Atoms:
        return tuple(self._long(self.region.atoms((name,))) for name in names)

    def _long(self, names: Names) -> Names:
        return tuple(n for n in names if self.region.sizes.get(n) != 1)

    def _bound(self, axis: Axis, atoms: Names) -> dict[str, Names]:
        """Maps the names of an operand's axis in an axis rule to the atoms that they are."""
        if len(axis.names) == 1:
            return {axis.names[0]: atoms}
        return {n: (a,) for n, a in zip(axis.names, atoms)} if len(axis.names) == len(atoms) else {}


def _joined(axis: Axis, found: dict[str, Names]) -> Names | None:
    parts = [found.get(name) for name in axis.names]
    if axis.mark or None in parts:
        return None
    return tuple(atom for part in parts if part is not None for atom in part)
