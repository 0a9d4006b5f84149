"""One candidate stream: the reduction that it ends in, the reductions that join it, its profit.

A stream is profitable if it corrects running values, or keeps dots out of memory that are larger
than their operands. Prologue fusion is another profit: one operand of a single dot is computed from
much smaller values and never goes through memory. Decays exp(a_i - a_j) of many heads, times one
table of scores, are such an operand.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from stack.ir.builder import make
from stack.ir.dim import Dim, add, less_equal, product
from stack.ir.node import Node, deps
from stack.ir.traits import contractions, is_contraction
from stack.ir.types import TupleType
from stack.passes.streaming.build import Build
from stack.passes.streaming.explanation import explained
from stack.passes.streaming.graph import Graph, moves, reduced_value
from stack.passes.streaming.normal_form import NormalForm
from stack.passes.streaming.outputs import is_row, outputs_of, virtual
from stack.passes.streaming.price import choose
from stack.passes.streaming.reduced_axes import leaves_idle
from stack.passes.streaming.region import Region, region_of
from stack.passes.streaming.terms import DotsInMemory, Refusal, TermValue, follows
from stack.rewrite.engine import Replacement
from stack.rewrite.log import Log

EXPANDS = 4  # elements of a computed operand, relative to those that it is computed from


class Options(Protocol):
    """The part of pass `Stream` that a candidate reads."""

    @property
    def loops(self) -> str: ...
    @property
    def refuse(self) -> tuple[str, ...]: ...
    def is_long(self, node: Node, log: Log) -> bool: ...


class Candidate:
    """The stream that ends in one reduction.

    Args:
        options: the pass.
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
        assert found is not None, "a stream ends in a reduction"
        self.extent = found[0]
        self.is_long = options.is_long(sink, log)
        if not siblings and not self.is_long:
            self.early = graph.read_past(sink)
        self.region: Region = self._collect()

    # ---- region

    def _collect(self) -> Region:
        """Returns the stream's region. Dots that other nodes read from memory are not
        recomputed."""
        while True:
            region = self._region()
            self.held |= self.early.intersection(v.node for v in region.visited)
            late = self._late(region) if self.shared else frozenset[Node]()
            needed = self._needed_outside(region) - self.held
            if late:
                self.outside |= late
            elif needed:
                self.held |= needed
            else:
                return region

    def _region(self) -> Region:
        """Returns the sink's region, merged with other reductions that use its states."""
        held = self.held | self.early
        region = Region(self.graph, self.extent, self.outside, held)
        region.add(self.sink)
        if len(region.members) == 1 and not region.dots and not self.is_long:
            return region
        self._check_width([self.sink], region)
        # a long row streams with all its reductions: refused ones would read the row again
        asked = self.outside if self.is_long else self.asked | self.outside
        after = self.graph.after(region.members)
        found = ((n, reduced_value(n)) for n in reversed(self.graph.nodes) if n not in asked)
        others = [n for n, value in found if value and value[0] == self.extent and n in after]
        found = ((n, reduced_value(n)) for n in self.siblings if n not in (*others, *self.outside))
        others += [n for n, value in found if value and value[0] == self.extent]
        has_dots = region.dots or contractions((*others, *region.members))
        # a dot that only an earlier stream read has left the block
        shared = [dot for dot in self.shared if dot in self.graph.place]
        for node in others if has_dots or self.is_long else ():
            if node in region.members:
                continue
            if node not in self.graph.after((*region.members, *shared), self.extent):
                continue  # it uses no state
            try:
                more = region_of(self.graph, node, self.outside, held)
                joins = not region.members.keys().isdisjoint(more.members)
                if joins or self._is_sibling(region, more):
                    region.merge(more)
            except Refusal:
                continue
        return region

    def _is_sibling(self, region: Region, other: Region) -> bool:
        """True if two regions stream along shared dots and neither depends on the other."""
        if not any(v.node in self.shared for v, _ in region.common(other)):
            return False
        first, second = self.graph.after(region.members), self.graph.after(other.members)
        return first.isdisjoint(other.members) and second.isdisjoint(region.members)

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

    def _needed_outside(self, region: Region) -> frozenset[Node]:
        """Returns dots of a region, and values computed from them, that other nodes or results need
        too."""
        graph = self.graph
        inside = {v.node for v in region.visited} | set(region.members)
        own = virtual(region)
        if self.shared:
            after = graph.after(region.dots - self.shared)
            own = frozenset(n for n in own if n in after)
        return frozenset(
            n for n in own if n in graph.results or any(u not in inside for u in graph.users[n])
        )

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

    # ---- stream

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
        region, graph = self.region, self.graph
        is_idle = self.options.loops == "blocks" and not contractions(region.members)
        keeps_rows = bool(region.dots) or not (is_idle and leaves_idle(self.sink, self.log.gpu))
        self.finishing, outputs = outputs_of(region, keeps_rows)
        if not self._is_worth_it(outputs):
            return None
        stream = Build(self.normal, self.finishing).build(outputs)
        after = graph.after(region.members)
        for arg in stream.args:
            if arg in after:
                raise Refusal(f"{graph.name(arg)} is computed from a state outside of the pass")
        ops = {n.op for b in stream.blocks for n in b.nodes}
        if foreign := ops.intersection(self.options.refuse):
            raise Refusal(f"no code for {', '.join(sorted(foreign))}")
        if self.options.loops:
            try:
                self.price = choose(stream, self.options.loops, self.log)
            except DotsInMemory:
                self.held |= region.dots
                self.is_long = True  # the loop reads its rows only once, also if they would fit
                self.region = self._collect()
                return self.build()
        inner = self.computed
        made: list[Node] = [stream]
        if isinstance(stream.type, TupleType):
            made = [make("item", (stream,), {"index": i}) for i in range(len(outputs))]
        return {old: Replacement(new, inner) for old, new in zip(outputs, made, strict=True)}

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

    def _is_worth_it(self, outputs: Sequence[Node]) -> bool:
        region = self.region
        dots = contractions(region.members)
        long = [n for n in outputs if is_row(region, n, self.finishing)]
        if (dots or region.dots) and long:
            name = self.graph.name(long[0])
            raise Refusal(f"{name} is as long as the axis, and other values need all of it again")
        self._check_width(dots, region)
        if not region.dots and not dots:
            return self.is_long and (len(region.members) > 1 or bool(long))
        depends = any(follows(f) for s in self.normal.states for f in s.all_factors)
        if depends or (dots and len(self.normal.states) > 1) or fuses_prologue(region, self.sink):
            return True
        # the dots, which stay out of memory, are larger than their operands
        between = sum(map(elements, region.dots))
        return between > sum(elements(a) for d in region.dots for a in d.args)

    # ---- log

    @property
    def computed(self) -> tuple[Node, ...]:
        """Returns the nodes of the function that the stream computes, operands first."""
        region = self.region
        passed = [v.node for v in (*region.visited, *region.rows) if region.passes(v)]
        found = self.finishing.union(region.members, region.dots, passed)
        return tuple(sorted(found, key=lambda n: self.graph.place.get(n, -1)))

    @property
    def lines(self) -> tuple[str, ...]:
        """Returns the source lines of these nodes."""
        return self.graph.lines(self.computed)

    def text(self) -> str:
        """Describes the derivation, step by step."""
        return explained(self.normal, self.sink, self.price)


def fuses_prologue(region: Region, sink: Node) -> bool:
    """True if the sink is a single dot, and one operand of it is computed from much smaller arrays:
    nothing else reads its values of full size."""
    if not is_contraction(sink) or len(region.members) > 1:
        return False
    for operand in region.operands[sink]:
        pending, seen = [operand], set[TermValue]()
        read: set[Node] = set()
        while pending:
            value = pending.pop()
            if value in seen:
                continue
            seen.add(value)
            if region.passes(value):
                pending.extend(region.operand_values(value))
            else:
                read.add(value.node)
        size = elements(operand.node)
        inside = {v.node for v in seen if v.node not in read} | {sink}
        large = [n for n in inside if elements(n) == size and n is not sink]
        is_small = 0 < EXPANDS * sum(map(elements, read)) <= size
        if is_small and all(u in inside for n in large for u in region.graph.users[n]):
            return True
    return False


def elements(node: Node) -> int:
    """Returns the size of a value; 0 if it is symbolic."""
    size = node.tensor.size
    return size if isinstance(size, int) else 0
