"""Region of a stream: the nodes along one axis, and the reductions over it that they use.

From a reduction over an axis k, the walk goes back through ops that treat every k in the same way
(by their axis rules). It collects the other reductions over an axis of that size whose results are
used on the way. One node may run along k in one use and across it in another, as x in x @ x.T. So
the walk visits pairs of a node and a name for each of its axes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from stack.ir import ops
from stack.ir.dim import Dim
from stack.ir.node import Node
from stack.ir.traits import is_contraction, is_formula, reads_by_data, repeats, shows
from stack.ir.types import TensorType
from stack.passes.streaming.graph import Graph, Probe, moves, read_through, reduced_value
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
        self.met: set[Node] = set()
        self.parts: dict[str, Names] = {}
        self.sizes: dict[str, Dim] = {}
        self._rows: dict[TermValue, None] = {}
        self._depends: dict[TermValue, bool] = {}
        self._operands: dict[TermValue, list[TermValue] | None] = {}

    # ---- names

    def operand_values(self, value: TermValue) -> list[TermValue]:
        """Returns the operands with named axes; an axis that the result lacks gets a new name.

        Raises Refusal if the streamed axis does not pass through as one whole axis.
        """
        if value not in self._operands:
            self._operands[value] = self._operand_values(value)
        found = self._operands[value]
        if found is None:
            raise Refusal(f"the axis does not pass through {self.graph.name(value.node)}")
        return found

    def _operand_values(self, value: TermValue) -> list[TermValue] | None:
        plain = self.graph.plain_operands(value)
        if plain is not None:
            self.sizes.update(plain[1])
            return plain[0]
        node, rule = value.node, ops.rule_of(value.node)
        if rule is None:
            return []
        place = self.graph.place.get(node, -1)
        made = list(zip(rule.outputs[0], value.names, strict=True))
        streamed = [axis for axis, name in made if name == K]
        along = {n for axis in streamed for n in axis.names}
        streamed += [a for o in rule.inputs for a in o if not along.isdisjoint(a.names)]
        if any(axis.mark or len(axis.names) != 1 for axis in streamed):
            return None  # before any axis is split: values that are read must leave no trace
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

    def columns(self, dot: Node) -> dict[str, Dim]:
        """Maps axes of a member's result that its main, computed operand lacks to their sizes."""
        values = self.operands[dot]
        main = next((v for v in values if v not in self.light), values[0])
        named = zip(self.members[dot], dot.shape, strict=True)
        return {name: size for name, size in named if name not in main.names}

    @property
    def computed(self) -> frozenset[Node]:
        """Returns the nodes of the function that the stream computes."""
        passed = (v.node for v in (*self.visited, *self._rows) if self.passes(v))
        return frozenset((*self.members, *self.dots, *passed))

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
        if reads_by_data(node):
            simple = True
        if not simple and node not in self.dots:
            return False
        try:
            self.operand_values(value)
        except Refusal:
            return False
        return True

    def _is_held(self, node: Node) -> bool:
        self.met.add(node)
        return node in self.held

    def depends(self, value: TermValue) -> bool:
        """True if a value depends on an earlier state."""
        known, pending = self._depends, [value]
        while pending:
            last = pending[-1]
            is_state = last.node in self.members and not last.streams
            operands = [] if last in known or is_state else self._carrying(last)
            found = is_state or any(known.get(v, False) for v in operands)
            missing = [] if found else [v for v in operands if v not in known]
            if missing:
                pending += reversed(missing)
            else:
                known.setdefault(pending.pop(), found)
        return known[value]

    def _carrying(self, value: TermValue) -> list[TermValue]:
        """Returns the operands through which a value may depend on a state."""
        if self._is_held(value.node) or not (moves(value.node) or reads_by_data(value.node)):
            return []
        try:
            return self.operand_values(value)
        except Refusal:
            return []

    # ---- collecting

    def add(self, reduction: Node) -> None:
        """Adds a reduction over the streamed axis, and the reductions that it uses the results of
        and shares values with, until nothing is added. Raises Refusal if one reduces another axis,
        or there are too many."""
        found = reduced_value(reduction)
        if found is None or found[0] != self.extent:
            raise Refusal(f"{self.graph.name(reduction)} reduces another axis")
        _, operands, result = found
        self._take(reduction, operands, result, {})
        while True:
            left = [v for v in self._rows if v.node not in self.members]
            joined = self._sharing(left) if left else []
            if not joined:
                break
            if len(self.members) + len(joined) > MAX_MEMBERS:
                raise Refusal(f"it depends on more than {MAX_MEMBERS} reductions over the axis")
            for value in joined:
                self._join(value)
        for value in self._rows:
            known = self.members.get(value.node, value.names)
            if self.long_names(known) != self.long_names(value.names):
                raise Refusal(f"{self.graph.name(value.node)} is needed along different axes")

    def long_names(self, names: Names) -> Names:
        """Returns the names of axes of more than one element: reshapes rename the others."""
        return tuple(n for n in names if self.sizes.get(n) != 1)

    def merge(self, other: Region) -> None:
        """Adds another region, which shares a member or a dot with this one."""
        table: dict[str, str] = {K: K}
        for node, names in other.members.items():
            for new, old in zip(names, self.members.get(node, ()), strict=False):
                self._match(other, new, old, table, node)
        for mine, value in self.common(other):
            for new, old in zip(value.names, mine.names, strict=True):
                self._match(other, new, old, table, value.node)
        place = f"{len(self.members)}/"
        other = other.renamed({n: table.get(n, place + n) for n in other.all_names()})
        for node, names in other.members.items():
            if self.members.setdefault(node, names) != names:
                raise Refusal(f"{self.graph.name(node)} is needed along different axes")
        self.operands = {**other.operands, **self.operands}
        self.parts = {**other.parts, **self.parts}
        self.sizes = {**other.sizes, **self.sizes}
        self.dots |= other.dots
        self._operands.clear()
        self.visited |= other.visited
        self.light |= other.light
        self._depends.clear()

    def common(self, other: Region) -> list[tuple[TermValue, TermValue]]:
        """Returns pairs, named by each region, of the dots that both compute tile by tile along one
        axis."""
        mine, theirs = self._named_dots(), other._named_dots()
        return [(mine[key], theirs[key]) for key in mine if key in theirs]

    def _named_dots(self) -> dict[tuple[Node, int], TermValue]:
        """Returns dots that are computed tile by tile, by node and streamed axis."""
        found: dict[tuple[Node, int], TermValue] = {}
        for value in self.visited:
            if value.node in self.dots:
                found.setdefault((value.node, value.axis), value)
        return found

    def _match(self, other: Region, new: str, old: str, table: dict[str, str], node: Node) -> None:
        """Records that axis `new` of another region is axis `old` of this one, and so for the parts
        that reshapes split them into. Raises Refusal if `new` already is another axis."""
        if table.setdefault(new, old) != old:
            raise Refusal(f"{self.graph.name(node)} is needed along different axes")
        if new in other.parts:
            parts = other.parts[new]
            for a, b in zip(parts, self._split(old, [other.sizes[n] for n in parts]), strict=True):
                self._match(other, a, b, table, node)

    def all_names(self) -> set[str]:
        """Returns the names of axes in use."""
        values = [v for vs in self.operands.values() for v in vs]
        held = [*self.members.values(), *(v.names for v in (*self.visited, *values))]
        parts = [(name, *made) for name, made in self.parts.items()]
        return {n for names in (*held, *parts, self.sizes) for n in names}

    def renamed(self, table: Mapping[str, str]) -> Region:
        """Returns a copy of the region with its axes renamed by `table`."""

        def names(old: Names) -> Names:
            return tuple(table[n] for n in old)

        def value(old: TermValue) -> TermValue:
            return TermValue(old.node, names(old.names))

        new = Region(self.graph, self.extent, self.outside, self.held)
        new.members = {n: names(v) for n, v in self.members.items()}
        new.operands = {n: tuple(map(value, vs)) for n, vs in self.operands.items()}
        new.parts = {table[n]: names(made) for n, made in self.parts.items()}
        new.sizes = {table[n]: size for n, size in self.sizes.items()}
        new.dots = set(self.dots)
        new.visited = dict.fromkeys(map(value, self.visited))
        new.light = set(map(value, self.light))
        return new

    def _take(
        self, node: Node, operands: tuple[Names, ...], result: Names, rename: Mapping[str, str]
    ) -> None:
        self.members[node] = tuple(rename.get(n, n) for n in result)
        self._depends.clear()
        values = tuple(
            TermValue(a, tuple(rename.get(n, n) for n in names))
            for a, names in zip(node.args, operands, strict=True)
        )
        self.operands[node] = values
        for value in (*values, TermValue(node, self.members[node])):
            self.sizes.update(zip(value.names, value.node.shape))
        streamed = [v for v in values if v.streams]
        # a single operand needs no comparison
        ranks = [self._rank(v) for v in streamed] if len(streamed) > 1 else [(True, 0)]
        for value, rank in zip(streamed, ranks):
            first = rank == max(ranks)
            self._walk(value, main=first or rank[0], dots=first)

    def _rank(self, value: TermValue) -> tuple[bool, int]:
        """Returns the sort key of an operand: True if it depends on other reductions over the axis,
        then the elements of the largest dot that it is computed from."""
        names = value.names
        plain = tuple([n if n == K else str(names.index(n)) for n in names])
        probe = self._probe((TermValue(value.node, plain),))
        return probe.comes_back, probe.largest_dot

    def _probe(self, starts: tuple[TermValue, ...]) -> Probe:
        """Walks from some values in a separate region, and caches the result in the graph.

        Most sinks of a model lead back to the same layers.
        """
        key = starts, self.extent
        found = self.graph.probes.find(key, self.held, self.outside)
        if found is None:
            region = Region(self.graph, self.extent, self.outside, self.held)
            for start in starts:
                region._walk(start, main=True, dots=True)
            sizes = [d.tensor.size for d in region.dots]
            found = Probe(
                frozenset((v.node, v.axis) for v in region.visited),
                bool(region._rows),
                max((s for s in sizes if isinstance(s, int)), default=0),
                frozenset(region.met),
            )
            self.graph.probes.keep(key, self.held, self.outside, found)
        self.met |= found.met
        return found

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
                self._visit_row(value, pending)
                continue
            if dots and is_contraction(node) and not self._is_held(node):
                if node.tensor.size == space and self._is_outer(value):
                    self.dots.add(node)
                    for operand in self.operand_values(value):
                        self._walk_views(operand)
            if not main:
                self.light.add(value)
            self.visited[value] = None
            if is_contraction(node) or not self.passes(value):
                continue
            pending.extend(reversed(self.operand_values(value)))

    def settle(self) -> None:
        """Records every way in which a reshape splits or merges axes, before names are resolved."""
        pending = [v for values in self.operands.values() for v in values]
        seen: set[TermValue] = set()
        while pending:
            value = pending.pop()
            if value not in seen and (self.passes(value) or value.node in self.dots):
                seen.add(value)
                pending.extend(self.operand_values(value))

    def _walk_views(self, value: TermValue) -> None:
        """Records how views split the axes of a dot's operand."""
        while read_through(value.node) and self.passes(value):
            (value,) = self.operand_values(value)

    def _visit_row(self, value: TermValue, pending: list[TermValue]) -> None:
        node = value.node
        self.met.add(node)
        found = reduced_value(node) if node not in self.outside else None
        if found is not None and not reads_by_data(node) and found[0] == self.extent:
            self._rows[value] = None
        elif moves(node):
            pending.extend(self.operand_values(value))

    def _is_outer(self, value: TermValue) -> bool:
        """True if one operand of a dot lacks the streamed axis: the result is a table along it."""
        try:
            return sum(v.streams for v in self.operand_values(value)) == 1
        except Refusal:
            return False

    def _sharing(self, rows: list[TermValue]) -> list[TermValue]:
        """Returns those of `rows` whose reductions run over a value that this region visits."""
        mine = {
            (v.node, v.axis) for v in self.visited if not (is_formula(v.node) or repeats(v.node))
        }
        return [v for v in rows if not mine.isdisjoint(self._passed(v.node))]

    def _passed(self, reduction: Node) -> frozenset[tuple[Node, int]]:
        """Returns the values that a reduction runs over, with the streamed axis of each."""
        found = reduced_value(reduction)
        values = zip(reduction.args, found[1] if found else (), strict=False)
        starts = tuple([v for v in (TermValue(arg, names) for arg, names in values) if v.streams])
        return self._probe(starts).passed

    def _join(self, value: TermValue) -> None:
        found = reduced_value(value.node)
        if found is None:
            return
        _, operands, result = found
        place = f"{self.graph.place[value.node]}:"
        rename = {n: K if n == K else place + n for names in operands for n in names}
        rename.update(zip(result, value.names, strict=True))
        self._take(value.node, operands, result, rename)
