"""Values that a stream computes after its loop: of its states, and what only these values read.

A kernel has one tile of results, with the axes of the states. A value that is the product of a
broadcast state and another array has an axis of its own, and no place in that tile.
"""

from __future__ import annotations

from collections.abc import Collection
from heapq import heapify, heappop, heappush

from stack.ir import ops
from stack.ir.node import Node, is_inline
from stack.ir.traits import contractions, is_alias, repeats
from stack.passes.streaming.graph import Graph, finishes, keeps_its_value
from stack.passes.streaming.region import MAX_VALUES, Region
from stack.passes.streaming.terms import Names, Refusal
from stack.rewrite.group import bytes_of


def outputs_of(region: Region, keeps_rows: bool) -> tuple[set[Node], list[Node]]:
    """Returns the nodes that a stream computes after its loop, and those of them that the rest of
    the block needs.

    Args:
        region: the collected region of the stream.
        keeps_rows: False if other kernels compute the values that are as long as the axis.
    """
    graph = region.graph
    axes = _Axes(region)
    finishing = _finishing(region, axes)
    inside = {v.node for v in region.visited if region.depends(v)}
    if not keeps_rows:
        rows = {n for n in finishing | inside if is_row(region, n, finishing)}
        finishing, inside = finishing - rows, inside - rows
    has_products = bool(region.dots or contractions(region.members))
    while True:
        own = finishing.union(region.members)
        needed = [n for n in own if _is_read(graph, n, own)]
        views = {n for n in needed if repeats(n) or is_alias(n)}
        if has_products:  # a tile has the axes of states only
            views |= {n for n in needed if n in finishing and not axes.has_own(n)}
        if not views:
            break
        finishing -= views
    lost = [n for n in inside - own if _is_read(graph, n, own)]
    if lost:
        name = graph.name(max(lost, key=graph.place.__getitem__))
        raise Refusal(f"{name} is as long as the axis, and other values need all of it again")
    rows = set[Node]() if region.dots else _other_rows(region, finishing, needed)
    finishing |= _producers(region, finishing)
    return finishing | rows, sorted(rows.union(needed), key=graph.place.__getitem__)


def virtual(region: Region) -> frozenset[Node]:
    """Returns values computed from a region's dots without states; they stay out of memory."""
    if not region.dots:
        return frozenset()
    after = region.graph.after(region.dots)
    return frozenset(v.node for v in region.visited if v.node in after and not region.depends(v))


def is_row(region: Region, node: Node, finishing: Collection[Node]) -> bool:
    """True if a value is as long as the streamed axis: the loop visits it, or it reads such values,
    perhaps through values in `finishing`."""
    rows = {v.node for v in region.visited}
    pending, seen = [node], set[Node]()
    while pending:
        found = pending.pop()
        if found in rows:
            return True
        if found not in seen and found not in region.members:
            seen.add(found)
            pending += found.args if found in finishing else ()
    return False


def _is_read(graph: Graph, node: Node, own: Collection[Node]) -> bool:
    """True if the rest of the block reads a value other than through `own`."""
    last = max(map(graph.place.__getitem__, own))
    pending, seen = [node], {node}
    while pending:
        found = pending.pop()
        if found in graph.results:
            return True
        fresh = [u for u in graph.users.get(found, ()) if u not in own and u not in seen]
        if any(graph.place[u] > last for u in fresh):
            return True  # every node of a block is needed by some result
        seen.update(fresh)
        pending.extend(fresh)
    return False


def _finishing(region: Region, axes: _Axes) -> set[Node]:
    """Returns nodes that can be computed from the states after the loop; adds their axes."""
    graph, members = region.graph, region.members
    after, unstored = graph.after(members), virtual(region)
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
            a in finishing or a in members or (a not in after and a not in unstored)
            for a in node.args
        ):
            finishing.add(node)
            axes.add(node)
            for user in graph.users.get(node, ()):
                heappush(pending, graph.place[user])
    return finishing


def _other_rows(
    region: Region, finishing: Collection[Node], outputs: Collection[Node]
) -> set[Node]:
    """Returns rows to write with `outputs`: results of the block that depend on no state, such as a
    sum with a residual. No other kernel then reads the rows again.

    `finishing` is computed after the loop. Operands of the stream must not depend on these values.
    """
    graph = region.graph
    made = {v.node for v in region.visited if region.passes(v)}
    read = {v.node for v in region.visited}.union(*(n.args for n in finishing))
    read -= made.union(finishing, region.members)
    shapes = {n.shape for n in outputs}
    return {
        v.node
        for v in region.visited
        if v.node in graph.results
        and v.node.shape in shapes
        and keeps_its_value(v.node)
        and region.passes(v)
        and not region.depends(v)
        and graph.after((v.node,)).isdisjoint(read)
    }


def _producers(region: Region, finishing: Collection[Node]) -> set[Node]:
    """Returns values that only `finishing` reads, and that cost less to compute after the loop than
    to write and read, such as rows that are added to the stream's own."""
    graph = region.graph
    stays = {v.node for v in region.visited}.union(finishing, region.members, graph.results)
    found: set[Node] = set()
    pending = sorted(finishing, key=graph.place.__getitem__)
    while pending and len(found) + len(finishing) < MAX_VALUES:
        for arg in pending.pop().args:
            if arg in found or arg in stays or not arg.args or not finishes(arg):
                continue
            read = sum(bytes_of(a) for a in arg.args if not is_inline(a))
            is_own = all(u in finishing or u in found for u in graph.users[arg])
            if is_own and read <= 2 * bytes_of(arg):
                found.add(arg)
                pending.append(arg)
    return found


class _Axes:
    """The axes of states in values that are computed from them.

    Attributes:
        known: for each axis of a value the axes of states that it consists of, none for an axis of
            one element; None for an axis that no state has.
    """

    def __init__(self, region: Region) -> None:
        dots = contractions(region.members)
        columns = {a for dot in dots for a in region.atoms(tuple(region.columns(dot)))}
        merged = (region.atoms((name,)) for name in region.parts)
        self.merged = {atoms for atoms in merged if columns.isdisjoint(atoms)}
        names = {v.node: v.names for v in reversed(region.visited)} | region.members
        self.known: dict[Node, tuple[Names | None, ...]] = {
            node: tuple(region.long_names(region.atoms((name,))) for name in own)
            for node, own in names.items()
        }

    def add(self, node: Node) -> None:
        """Derives the axes of a node from those of its operands, which were added before."""
        rule = ops.rule_of(node)
        if rule is None:
            return
        found: dict[str, Names] = {}
        for axes, arg in zip(rule.inputs, node.args, strict=True):
            for axis, atoms in zip(axes, self.known.get(arg, ()), strict=False):
                if atoms is None or axis.mark:
                    continue
                if len(axis.names) == 1:
                    found[axis.names[0]] = atoms
                elif len(axis.names) == len(atoms):
                    found.update(zip(axis.names, ((a,) for a in atoms)))
        made: list[Names | None] = []
        for axis, size in zip(rule.outputs[0], node.shape, strict=True):
            parts = [found[n] for n in axis.names if n in found]
            is_known = len(parts) == len(axis.names) and not axis.mark
            atoms = tuple(atom for part in parts for atom in part)
            made.append(() if size == 1 else atoms if is_known else None)
        self.known[node] = tuple(made)

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
