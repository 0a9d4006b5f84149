"""One candidate stream: the reduction that it ends in, the reductions that join it, its cost."""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import Protocol, Self

from stack.ir.builder import make
from stack.ir.dim import Dim, add, less_equal, product
from stack.ir.node import Node, deps
from stack.ir.traits import contractions, is_alias, repeats
from stack.ir.types import TupleType
from stack.passes.policies.reduction_loops import reduces_columns, shortest_streamed
from stack.passes.streaming.action import describe
from stack.passes.streaming.build import Build
from stack.passes.streaming.finishing import FinishAxes, finishing_nodes, producers
from stack.passes.streaming.graph import Graph, moves, reduced_value
from stack.passes.streaming.multi_output import multi_outputs
from stack.passes.streaming.normal_form import NormalForm
from stack.passes.streaming.price import choose
from stack.passes.streaming.prologue import elements, fuses_prologue
from stack.passes.streaming.reduced_axes import leaves_idle
from stack.passes.streaming.region import Region
from stack.passes.streaming.terms import DotsInMemory, Refusal, Writer, follows
from stack.rewrite.engine import Replacement
from stack.rewrite.log import Log


class Options(Protocol):
    """Options of pass `Stream` that a candidate reads."""

    @property
    def min_axis(self) -> int: ...
    @property
    def loops(self) -> str: ...
    @property
    def refuse(self) -> tuple[str, ...]: ...


class Candidate:
    """The stream that ends in one reduction.

    Args:
        options: the options of the pass.
        log: the log of the pass.
        graph: the block.
        sink: the last reduction of the stream.
        asked: later sinks that were already tried.
        shared: dots that every stream over them recomputes.
        siblings: reductions that these dots end in; those over the same axis join.
    """

    def __init__(
        self,
        options: Options,
        log: Log,
        graph: Graph,
        sink: Node,
        asked: set[Node],
        shared: frozenset[Node] = frozenset(),
        siblings: Sequence[Node] = (),
    ) -> None:
        self.options, self.log = options, log
        self.asked = asked
        self.graph = graph
        self.sink = sink
        self.shared = shared
        self.siblings = siblings
        self.outside: frozenset[Node] = frozenset()
        self.held: frozenset[Node] = frozenset()
        self.price = ""
        self.early: frozenset[Node] = frozenset()  # held values that are known before the walk
        found = reduced_value(sink)
        self.is_long = found is not None and self._is_too_long(found[0])
        if not siblings and found is not None and not self.is_long:
            self.early = graph.read_past(sink)
        self.region = self._collect()

    def _collect(self) -> Region:
        """Returns the stream's region. Dots that other nodes read from memory are not
        recomputed."""
        while True:
            region = self._region()
            self.held |= self.early.intersection(v.node for v in region.visited)
            late = self._late(region) if self.shared else frozenset[Node]()
            needed = frozenset(self._needed_outside(region)) - self.held
            if late:
                self.outside |= late
            elif needed:
                self.held |= needed
            else:
                return region

    def _late(self, region: Region) -> frozenset[Node]:
        """Returns reductions of a region that cannot be computed in its loop: operands of its dots
        are computed from their results, or nodes outside of it compute from these what it reads."""
        inside = {v.node for v in region.visited} | region.dots | set(region.members)
        reads = {a for n in inside for a in deps(n)} | inside
        operands = {a for n in region.dots for a in n.args}
        late: set[Node] = set()
        for member in region.members:
            if member is self.sink:
                continue
            after = self.graph.after((member,))
            foreign = [n for n in after if n not in inside and not moves(n)]
            if not (after.isdisjoint(operands) and self.graph.after(foreign).isdisjoint(reads)):
                late.add(member)
        return frozenset(late)

    def _region(self) -> Region:
        """Returns the sink's region, merged with other reductions that use its states."""
        found = reduced_value(self.sink)
        assert found is not None
        held = self.held | self.early
        region = Region(self.graph, found[0], self.outside, held)
        region.add(self.sink)
        if len(region.members) == 1 and not region.dots and not self.is_long:
            return region
        self._check_width([self.sink], region)
        # a long row streams with all its reductions: refused ones would read the row again
        asked = set[Node]() if self.is_long else self.asked
        others = [n for n in self.graph.reductions if n not in asked]
        if others:
            after = self.graph.after(region.members)
            others = [n for n in others if n in after]
        others += [n for n in self.siblings if n not in others]
        others = [n for n in others if n not in self.outside and _extent(n) == found[0]]
        plain = not region.dots and not contractions((*others, *region.members))
        if plain and not self.is_long:
            return region
        for node in others:
            if node in region.members or not self._comes_back(region, node):
                continue
            try:
                more = self._alone(node, found[0], held)
                joins = not region.members.keys().isdisjoint(more.members)
                if joins or self._is_sibling(region, more):
                    region.merge(more)
            except Refusal:
                continue
        return region

    def _alone(self, node: Node, extent: Dim, held: frozenset[Node]) -> Region:
        """Returns the region of one reduction."""
        known = self.graph.regions.find(node, held, self.outside)
        if known is not None:
            return known
        region = Region(self.graph, extent, self.outside, held)
        region.add(node)
        self.graph.regions.keep(node, held, self.outside, region)
        return region

    def _comes_back(self, region: Region, node: Node) -> bool:
        """True if `node` is computed from a state of a region, or from a shared dot, by elementwise
        ops, views, gathers and reductions over an axis of the same size."""
        # a dot that only an earlier stream read has left the block
        shared = [dot for dot in self.shared if dot in self.graph.place]
        return node in self.graph.along((*region.members, *shared), region.extent)

    def _is_sibling(self, region: Region, other: Region) -> bool:
        """True if two regions stream along shared dots and neither depends on the other."""
        if not any(v.node in self.shared for v, _ in region.common(other)):
            return False
        first, second = self.graph.after(region.members), self.graph.after(other.members)
        return first.isdisjoint(other.members) and second.isdisjoint(region.members)

    def _is_too_long(self, extent: Dim) -> bool:
        """True if a row, or a column on a GPU, does not fit in the registers of a kernel."""
        least = self.options.min_axis
        if self.options.loops == "blocks":
            least = shortest_streamed(reduces_columns(self.sink), least, self.log.gpu)
        return isinstance(extent, int) and extent >= least

    def _virtual(self, region: Region) -> frozenset[Node]:
        """Returns values computed from a region's dots without states; they stay out of memory."""
        if not region.dots:
            return frozenset()
        visited = {v.node for v in region.visited if not region.depends(v)}
        after = self.graph.after(region.dots)
        return frozenset(n for n in visited if n in after)

    def _needed_outside(self, region: Region) -> list[Node]:
        """Returns dots of a region, and values computed from them, that other nodes or results need
        too."""
        inside = {v.node for v in region.visited} | set(region.members)
        own = self._virtual(region)
        if self.shared:
            after = self.graph.after(region.dots - self.shared)
            own = frozenset(n for n in own if n in after)
        return [
            n
            for n in own
            if n in self.graph.results or any(u not in inside for u in self.graph.users[n])
        ]

    # ---- normal form

    def build(self) -> dict[Node, Replacement] | None:
        """Returns the replacements; None if the stream is no candidate or not profitable.

        Raises Refusal if the stream cannot be built.
        """
        while True:
            if not self._is_candidate():
                return None
            try:
                self.normal = NormalForm(self.region)
                break
            except Refusal as refusal:
                if not self._leave_out(refusal.reduction):
                    raise
        self.finishing, self.outputs = self._outputs()
        if not self._is_worth_it():
            return None
        made = Build(self.normal, frozenset(self.finishing)).build(self.outputs)
        after = self.graph.after(self.region.members)
        for arg in made.node.args:
            if arg in after:
                raise Refusal(
                    f"{self.graph.name(arg)} is computed from a state outside of the pass"
                )
        foreign = {n.op for b in made.node.blocks for n in b.nodes}.intersection(
            self.options.refuse
        )
        if foreign:
            raise Refusal(f"no code for {', '.join(sorted(foreign))}")
        if self.options.loops:
            try:
                self.price = choose(made.node, self.options.loops, self.log)
            except DotsInMemory:
                return self._without_dots().build()
        return self._replacements(made.node)

    def _without_dots(self) -> Self:
        """Collects the region again, which then reads the results of its dots from memory. Returns
        the candidate itself."""
        self.held |= self.region.dots
        self.is_long = True  # the loop reads its rows only once, also if they would fit
        self.region = self._collect()
        return self

    def _leave_out(self, culprit: Node | None) -> bool:
        """Collects the region again without a reduction that was refused, and without those that it
        depends on. Returns False if there is none, or if the sink is among them."""
        if culprit is None or culprit is self.sink:
            return False
        before = {m for m in self.region.members if culprit in self.graph.after((m,))}
        self.outside |= before | {culprit}
        if self.sink in self.outside:
            return False
        self.region = self._collect()
        return True

    def _is_candidate(self) -> bool:
        """True for dots, a long axis, several reductions with a dot, or a prologue to fuse."""
        region = self.region
        if region.dots or self.is_long:
            return True
        if len(region.members) > 1:
            return bool(contractions(region.members))
        return fuses_prologue(region, self.sink)

    def _outputs(self) -> tuple[set[Node], list[Node]]:
        """Returns the nodes computed after the loop, and those of them needed elsewhere."""
        region, graph = self.region, self.graph
        after = graph.after(region.members)
        virtual = self._virtual(region)
        inside = {v.node for v in region.visited if region.depends(v)}
        axes = FinishAxes(region)
        finishing = finishing_nodes(region, after, virtual, axes)
        has_products = bool(region.dots or contractions(region.members))
        if not region.dots and self.options.loops == "blocks" and self._leaves_idle():
            rows = {n for n in finishing | inside if self._is_row(n, finishing)}
            finishing, inside = finishing - rows, inside - rows
        while True:
            own = finishing.union(region.members)
            needed = [n for n in own if self._is_read(n, own)]
            views = {n for n in needed if repeats(n) or is_alias(n)}
            if has_products:  # a tile has the axes of states only
                views |= {n for n in needed if n in finishing and not axes.has_own(n)}
            if not views:
                break
            finishing -= views
        needed.sort(key=graph.place.__getitem__)
        lost = [n for n in inside - own if self._is_read(n, own)]
        if lost:
            name = graph.name(max(lost, key=graph.place.__getitem__))
            raise Refusal(f"{name} is as long as the axis, and other values need all of it again")
        rows = [] if region.dots else multi_outputs(graph, region, finishing, needed)
        finishing |= producers(region, finishing)
        return finishing.union(rows), sorted({*needed, *rows}, key=graph.place.__getitem__)

    def _leaves_idle(self) -> bool:
        """True if the rows are computed by other kernels, because these have more programs."""
        is_plain = not contractions(self.region.members)
        return is_plain and leaves_idle(self.sink, self.log.gpu)

    def _is_read(self, node: Node, own: set[Node]) -> bool:
        """True if the rest of the block reads a value other than through `own`."""
        graph = self.graph
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

    def _is_worth_it(self) -> bool:
        region = self.region
        dots = contractions(region.members)
        long = [n for n in self.outputs if self._is_row(n, self.finishing)]
        if (dots or region.dots) and long:
            name = self.graph.name(long[0])
            raise Refusal(f"{name} is as long as the axis, and other values need all of it again")
        self._check_width(dots, region)
        factors = [f for s in self.normal.states for f in s.all_factors]
        depends = any(follows(f) for f in factors)
        if not region.dots and not dots:
            return self.is_long and (len(region.members) > 1 or bool(long))
        if depends or (dots and len(self.normal.states) > 1) or fuses_prologue(region, self.sink):
            return True
        return bool(region.dots) and self._saves_bytes()

    def _check_width(self, sinks: Sequence[Node], region: Region) -> None:
        """Refuses results that are wider than the data that stays out of memory."""
        dots = contractions(sinks)
        total: Dim = 0
        for dot in dots:
            total = add(total, product(list(region.columns(dot).values())))
        if dots and not region.dots and less_equal(total, region.extent) is not True:
            raise Refusal(
                f"the results have {total} columns, more than the {region.extent} elements"
                " that would stay out of memory"
            )

    def _is_row(self, node: Node, finishing: Container[Node]) -> bool:
        """True if a value is as long as the streamed axis: the loop visits it, or it reads such
        values, perhaps through values in `finishing`."""
        is_visited = any(v.node is node for v in self.region.visited)
        return is_visited or self._reads_row(node, finishing)

    def _reads_row(self, node: Node, finishing: Container[Node]) -> bool:
        rows = {v.node for v in self.region.visited if v.streams}
        pending, seen = [node], set[Node]()
        while pending:
            found = pending.pop()
            if found in rows:
                return True
            if found in seen or found in self.region.members:
                continue
            seen.add(found)
            if found in finishing:
                pending.extend(found.args)
        return False

    def _saves_bytes(self) -> bool:
        """True if the region's dots, which stay out of memory, are larger than their operands."""
        between = sum(elements(d) for d in self.region.dots)
        return between > sum(elements(a) for d in self.region.dots for a in d.args)

    # ---- result

    @property
    def computed(self) -> tuple[Node, ...]:
        """Returns the nodes of the function that the stream computes, operands first."""
        found = self.region.computed.union(self.finishing)
        return tuple(sorted(found, key=lambda n: self.graph.place.get(n, -1)))

    @property
    def lines(self) -> tuple[str, ...]:
        """Returns the source lines of these nodes."""
        return self.graph.lines(self.computed)

    def _replacements(self, stream: Node) -> dict[Node, Replacement]:
        inner = self.computed
        if not isinstance(stream.type, TupleType):
            return {self.outputs[0]: Replacement(stream, inner)}
        return {
            output: Replacement(make("item", (stream,), {"index": i}), inner)
            for i, output in enumerate(self.outputs)
        }

    def text(self) -> str:
        """Describes the derivation, step by step."""
        normal = self.normal
        block = self.graph.block
        names = {**block.names, **{p: str(p.attrs["name"]) for p in block.params}}
        writer = Writer(names, normal.states, self.graph.after(self.region.members))
        members = sorted(self.region.members, key=lambda n: self.graph.place[n])
        for node in sorted(members, key=lambda n: any(p.rows for p in normal.forms[n])):
            text = writer.form(normal.forms[node])
            writer.forms[node] = f"({text})" if " " in text else text
        lines = [f"{self.graph.name(self.sink)} is streamed over an axis of {self.region.extent}"]
        lines.append("normal form")
        lines += [f"  {writer.place[s]} = {writer.state(s)}" for s in normal.states]
        lines += [f"  {names.get(n, n.op)} = {writer.form(normal.forms[n])}" for n in members]
        lines.append("summand F and action A")
        lines += [f"  {line}" for line in describe(normal, writer)]
        if self.price:
            lines.append(f"price: {self.price}")
        return "\n".join(lines)


def _extent(node: Node) -> Dim | None:
    """Returns the size of the axis that a node reduces; None if it reduces none."""
    found = reduced_value(node)
    return found[0] if found is not None else None
