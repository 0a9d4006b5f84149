"""Region of a stream: the nodes along one axis, and the reductions over it that they use.

From a reduction over an axis k, the walk goes back through ops that treat every k in the same way
(by their axis rules). It collects the other reductions over an axis of that size whose results are
used on the way. One node may run along k in one use and across it in another, as x in x @ x.T. So
the walk visits pairs of a node and a name for each of its axes.
"""

from __future__ import annotations

from collections.abc import Sequence

from stack.ir import ops
from stack.ir.dim import Dim
from stack.ir.node import Node
from stack.ir.traits import is_contraction, is_formula, reads_by_data, repeats, shows
from stack.ir.types import TensorType
from stack.passes.streaming.graph import Graph, Probes, moves, read_through, reduced_value
from stack.passes.streaming.terms import K, Names, Refusal, TermValue

MAX_MEMBERS = 10  # most reductions along one axis; more are layers of a model
MAX_VALUES = 192  # most values that one of them is computed from: more fill a kernel of their own


class Region:
    """The reductions of one stream and the values that they are computed from.

    Attributes:
        members: reductions over k, with the names of their results' axes.
        operands: the operands of each member.
        dots: dots with the axis k that are computed tile by tile.
        visited: values with the axis k between the members and the leaves.
        rows: results of reductions over an axis of that size that the walk met.
        met: nodes of which a walk asked whether they are held or outside: if the answers are the
            same for other sets of these, so is the region.
        parts: axes that a reshape splits or merges, and their factors.
    """

    def __init__(
        self, graph: Graph, extent: Dim, outside: frozenset[Node], held: frozenset[Node]
    ) -> None:
        self.graph = graph
        self.extent = extent
        self.outside = outside  # reductions that are not states here
        self.held = held  # values that are in memory anyway
        self.members: dict[Node, Names] = {}
        self.operands: dict[Node, tuple[TermValue, ...]] = {}
        self.dots: set[Node] = set()
        self.visited: dict[TermValue, None] = {}  # ordered: the first of two names counts
        self.light: set[TermValue] = set()
        self.rows: dict[TermValue, None] = {}
        self.met: set[Node] = set()
        self.parts: dict[str, Names] = {}
        self.sizes: dict[str, Dim] = {}
        self._depends: dict[TermValue, bool] = {}
        self._operands: dict[TermValue, list[TermValue] | str] = {}

    # ---- names

    def operand_values(self, value: TermValue) -> list[TermValue]:
        """Returns the operands with named axes; an axis that the result lacks gets a new name.

        Raises Refusal if the streamed axis does not pass through as one whole axis.
        """
        found = self.find_operands(value)
        if isinstance(found, str):
            raise Refusal(found)
        return found

    def find_operands(self, value: TermValue) -> list[TermValue] | str:
        """Returns what `operand_values` does, or the reason why that refuses; cached."""
        if value not in self._operands:
            try:
                self._operands[value] = self._named_operands(value)
            except Refusal as refusal:
                self._operands[value] = str(refusal)
        return self._operands[value]

    def _named_operands(self, value: TermValue) -> list[TermValue]:
        node, rule = value.node, ops.rule_of(value.node)
        if rule is None:
            return []
        place = self.graph.place.get(node, -1)
        made = list(zip(rule.outputs[0], value.names, strict=True))
        streamed = [axis for axis, name in made if name == K]
        along = {n for axis in streamed for n in axis.names}
        streamed += [a for o in rule.inputs for a in o if not along.isdisjoint(a.names)]
        if any(axis.mark or len(axis.names) != 1 for axis in streamed):
            # before any axis is split: values that are read must leave no trace
            raise Refusal(f"the axis does not pass through {self.graph.name(node)}")
        extents = {
            axis.names[0]: size
            for axes, v in zip((*rule.outputs, *rule.inputs), (node, *node.args), strict=True)
            for axis, size in zip(axes, v.shape, strict=True)
            if len(axis.names) == 1
        }
        bound: dict[str, str] = {}
        for axis, name in made:
            own = self._split(name, [extents[n] for n in axis.names])
            bound |= zip(axis.names, own, strict=True)
        self.sizes.update(zip(value.names, node.shape))
        found: list[TermValue] = []
        for operand, arg in zip(rule.inputs, node.args, strict=True):
            names: list[str] = []
            for position, axis in enumerate(operand):
                parts = [bound.get(n, f"{place}:{n}") for n in axis.names]
                names.append(self._joined(parts) or f"{place}:{position}")
            found.append(TermValue(arg, tuple(names)))
            for name, size in zip(names, arg.shape, strict=True):
                if self.sizes.setdefault(name, size) != size:
                    raise Refusal(f"{self.graph.name(arg)} splits an axis in another way")
        return found

    def _split(self, name: str, sizes: Sequence[Dim]) -> Names:
        """Returns names of the axes of these sizes into which a reshape splits axis `name`. Raises
        Refusal if another reshape splits it differently."""
        if len(sizes) < 2:
            return (name,) * len(sizes)
        made = self.parts.setdefault(name, tuple(f"{name}.{i}" for i in range(len(sizes))))
        if len(made) != len(sizes):
            raise Refusal(f"an axis is split into {len(made)} and into {len(sizes)}")
        for part, size in zip(made, sizes, strict=True):
            if self.sizes.setdefault(part, size) != size:
                raise Refusal(f"an axis is split into {self.sizes[part]} and into {size}")
        return made

    def _joined(self, parts: list[str]) -> str:
        """Names and returns the axis into which a reshape merges the axes `parts`."""
        if len(parts) < 2:
            return "".join(parts)
        known = [name for name, made in self.parts.items() if made == tuple(parts)]
        name = known[0] if known else f"({' '.join(parts)})"
        self.parts[name] = tuple(parts)
        return name

    def atoms(self, names: Names) -> Names:
        """Returns names of axes, with those that a reshape splits or merges replaced by their
        parts."""
        parts = (self.atoms(self.parts[n]) if n in self.parts else (n,) for n in names)
        return tuple(atom for part in parts for atom in part)

    def long_names(self, names: Names) -> Names:
        """Returns the names of axes of more than one element: reshapes rename the others."""
        return tuple(n for n in names if self.sizes.get(n) != 1)

    def columns(self, dot: Node) -> dict[str, Dim]:
        """Maps axes of a member's result that its main, computed operand lacks to their sizes."""
        values = self.operands[dot]
        main = next((v for v in values if v not in self.light), values[0])
        named = zip(self.members[dot], dot.shape, strict=True)
        return {name: size for name, size in named if name not in main.names}

    # ---- values

    def passes(self, value: TermValue) -> bool:
        """True if the stream computes a value from its operands, rather than reading it."""
        node = value.node
        if node in self.members or self._is_held(node) or not isinstance(node.type, TensorType):
            return False
        if is_formula(node):
            return True
        simple = moves(node)
        if not value.streams:
            # rows without a state are read, unless they are views or generated
            return simple and (shows(node) or self.graph.is_generated(node) or self.depends(value))
        if value in self.light:
            simple = read_through(node)
        is_computed = simple or reads_by_data(node) or node in self.dots
        return is_computed and not isinstance(self.find_operands(value), str)

    def _is_held(self, node: Node) -> bool:
        self.met.add(node)
        return node in self.held

    def depends(self, value: TermValue) -> bool:
        """True if a value depends on an earlier state."""
        known, pending = self._depends, [value]
        while pending:
            last = pending[-1]
            node, is_state = last.node, last.node in self.members and not last.streams
            operands: list[TermValue] = []
            is_followed = not is_state and last not in known and not self._is_held(node)
            if is_followed and (moves(node) or reads_by_data(node)):
                found = self.find_operands(last)
                operands = [] if isinstance(found, str) else found
            carries = is_state or any(known.get(v, False) for v in operands)
            missing = [] if carries else [v for v in operands if v not in known]
            if missing:
                pending += reversed(missing)
            else:
                known.setdefault(pending.pop(), carries)
        return known[value]

    # ---- collecting

    def add(self, reduction: Node) -> None:
        """Adds a reduction over the streamed axis, and the reductions that it uses the results of
        and shares values with, until nothing is added. Raises Refusal if one reduces another axis,
        or there are too many."""
        found = reduced_value(reduction)
        if found is None or found[0] != self.extent:
            raise Refusal(f"{self.graph.name(reduction)} reduces another axis")
        self._take(reduction, found[1], found[2])
        while True:
            # formulas and broadcasts are shared with any reduction
            shared = (v for v in self.visited if not (is_formula(v.node) or repeats(v.node)))
            mine = {(v.node, v.axis) for v in shared}
            left = [v for v in self.rows if v.node not in self.members]
            joined = [v for v in left if not mine.isdisjoint(self.passed(v.node))]
            if not joined:
                break
            if len(self.members) + len(joined) > MAX_MEMBERS:
                raise Refusal(f"it depends on more than {MAX_MEMBERS} reductions over the axis")
            for row in joined:
                found = reduced_value(row.node)
                assert found is not None, "it is a row of a reduction"
                _, operands, result = found
                place = f"{self.graph.place[row.node]}:"
                own = {n: K if n == K else place + n for names in operands for n in names}
                own.update(zip(result, row.names, strict=True))
                self._take(row.node, [tuple(own[n] for n in o) for o in operands], row.names)
        for value in self.rows:
            known = self.members.get(value.node, value.names)
            if self.long_names(known) != self.long_names(value.names):
                raise Refusal(f"{self.graph.name(value.node)} is needed along different axes")

    def merge(self, other: Region) -> None:
        """Adds the members of another region, which shares a member or a dot with this one."""
        table: dict[str, str] = {K: K}
        for node, names in other.members.items():
            for new, old in zip(names, self.members.get(node, ()), strict=False):
                self._match(other, new, old, table, node)
        for mine, value in self.common(other):
            for new, old in zip(value.names, mine.names, strict=True):
                self._match(other, new, old, table, value.node)
        place = f"{len(self.members)}/"
        for node, operands in other.operands.items():
            if node not in self.members:
                values = (*operands, TermValue(node, other.members[node]))
                *own, result = (tuple(table.get(n, place + n) for n in v.names) for v in values)
                self._take(node, own, result)

    def common(self, other: Region) -> list[tuple[TermValue, TermValue]]:
        """Returns pairs, named by each region, of the dots that both compute tile by tile along one
        axis."""
        # reversed: the first of two names counts
        mine, theirs = (
            {(v.node, v.axis): v for v in reversed(r.visited) if v.node in r.dots}
            for r in (self, other)
        )
        return [(mine[key], theirs[key]) for key in reversed(mine) if key in theirs]

    def _match(self, other: Region, new: str, old: str, table: dict[str, str], node: Node) -> None:
        """Records that axis `new` of another region is axis `old` of this one, and so for the parts
        that reshapes split them into. Raises Refusal if `new` already is another axis."""
        if table.setdefault(new, old) != old:
            raise Refusal(f"{self.graph.name(node)} is needed along different axes")
        if new in other.parts:
            parts = other.parts[new]
            for a, b in zip(parts, self._split(old, [other.sizes[n] for n in parts]), strict=True):
                self._match(other, a, b, table, node)

    def _take(self, node: Node, operands: Sequence[Names], result: Names) -> None:
        """Adds one member with these names of axes, and visits what it is computed from."""
        self.members[node] = result
        self._depends.clear()
        values = tuple(map(TermValue, node.args, operands))
        self.operands[node] = values
        for value in (*values, TermValue(node, result)):
            self.sizes.update(zip(value.names, value.node.shape))
        streamed = [v for v in values if v.streams]
        ranks = [(True, 0)]
        if len(streamed) > 1:
            # the main operand depends on other reductions, or is of the largest dot
            probes = list(map(self._probe, streamed))
            dots = [[d.tensor.size for d in p.dots] for p in probes]
            largest = [max((s for s in own if isinstance(s, int)), default=0) for own in dots]
            ranks = [(bool(p.rows), size) for p, size in zip(probes, largest)]
        for value, rank in zip(streamed, ranks):
            first = rank == max(ranks)
            self._walk(value, main=first or rank[0], dots=first)

    def _probe(self, start: TermValue) -> Region:
        """Walks from a value in a separate region, and caches that in the graph.

        Most sinks of a model lead back to the same layers.
        """
        names = start.names
        plain = tuple([n if n == K else str(names.index(n)) for n in names])
        start = TermValue(start.node, plain)
        key = start, self.extent
        region = known_region(self.graph.probes, key, self.outside, self.held)
        if region is None:
            region = Region(self.graph, self.extent, self.outside, self.held)
            region._walk(start, main=True, dots=True)
            self.graph.probes.setdefault(key, []).append(region)
        self.met |= region.met
        return region

    def _walk(self, start: TermValue, main: bool, dots: bool) -> None:
        """Visits values backwards from a reduction's operand and adds them to the region. From a
        side operand (`main` false), only views and casts are followed."""
        space = start.node.tensor.size
        pending = [start]
        seen: set[TermValue] = set()
        while pending:
            value = pending.pop()
            if value in seen:
                continue
            seen.add(value)
            if len(seen) > MAX_VALUES:
                raise Refusal(f"{self.graph.name(start.node)} is of more than {MAX_VALUES} values")
            node = value.node
            if not value.streams:
                self.met.add(node)
                found = None if node in self.outside else reduced_value(node)
                if found is not None and found[0] == self.extent and not reads_by_data(node):
                    self.rows[value] = None
                elif moves(node):
                    pending.extend(self.operand_values(value))
                continue
            if dots and is_contraction(node) and not self._is_held(node):
                operands = self.find_operands(value)
                # one operand of a dot lacks the streamed axis: the result is a table along it
                if (
                    not isinstance(operands, str)
                    and sum(v.streams for v in operands) == 1
                    and node.tensor.size == space
                ):
                    self.dots.add(node)
                    for operand in operands:
                        self._split_views(operand)
            if not main:
                self.light.add(value)
            self.visited[value] = None
            if is_contraction(node) or not self.passes(value):
                continue
            pending.extend(reversed(self.operand_values(value)))

    def passed(self, reduction: Node) -> set[tuple[Node, int]]:
        """Returns the values that a reduction runs over, with the streamed axis of each."""
        found = reduced_value(reduction)
        values = map(TermValue, reduction.args, found[1] if found else ())
        probes = [self._probe(v) for v in values if v.streams]
        return {(v.node, v.axis) for p in probes for v in p.visited}

    def _split_views(self, value: TermValue) -> None:
        """Records how views split the axes of a dot's operand, before others split them in another
        way: what disagrees, as a mask, is read.
        """
        while read_through(value.node) and self.passes(value):
            (value,) = self.operand_values(value)

    def settle(self) -> None:
        """Records every way in which a reshape splits or merges axes, before names are resolved."""
        pending = [v for values in self.operands.values() for v in values]
        seen: set[TermValue] = set()
        while pending:
            value = pending.pop()
            if value not in seen and (self.passes(value) or value.node in self.dots):
                seen.add(value)
                pending.extend(self.operand_values(value))


def known_region(
    regions: Probes, key: object, outside: frozenset[Node], held: frozenset[Node]
) -> Region | None:
    """Returns the region of a walk from the same start that met no node of which these sets tell
    something else; None if there is none."""
    for region in regions.get(key, ()):
        if region.met.isdisjoint((region.held ^ held) | (region.outside ^ outside)):
            return region
    return None


def region_of(
    graph: Graph, reduction: Node, outside: frozenset[Node], held: frozenset[Node]
) -> Region:
    """Returns the region of one reduction, cached. Raises Refusal if there is none."""
    region = known_region(graph.regions, reduction, outside, held)
    if region is None:
        found = reduced_value(reduction)
        if found is None:
            raise Refusal(f"{graph.name(reduction)} reduces no axis")
        region = Region(graph, found[0], outside, held)
        region.add(reduction)
        graph.regions.setdefault(reduction, []).append(region)
    return region
