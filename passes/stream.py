"""stream: compute dependent reductions over one axis in a single loop over that axis.

Streams are found by algebra alone, in three steps. Every reduction is brought into a normal form
(see `streaming.normal_form`), the correction of its running value is derived (`streaming.action`),
and the op `stream` is built (`streaming.build`). A stream is built if it keeps a value as long as
the axis out of memory: the result of a dot, or a row too long for registers.

A dot may end in reductions over both of its axes, as in the gradient of a dot of it. It then blocks
a stream over either axis alone. If computing it again costs less than its bytes, each stream
computes it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from stack.ir.builder import Builder
from stack.ir.cost import cost
from stack.ir.func import Func
from stack.ir.node import Block, Node
from stack.ir.traits import contractions, reads_by_data
from stack.passes.policies.reduction_loops import reduces_columns, shortest_streamed
from stack.passes.streaming.arg_reductions import streamed_best, streamed_position
from stack.passes.streaming.candidate import Candidate
from stack.passes.streaming.concat import split_rows
from stack.passes.streaming.graph import Graph, Probes, moves, reduced_value
from stack.passes.streaming.layouts import read_parts, transpose_operands, write_transposed
from stack.passes.streaming.reduced_axes import merge_reduced_axes
from stack.passes.streaming.region import region_of
from stack.passes.streaming.terms import Refusal
from stack.rewrite.engine import Scope, Simple, replace, rewrite
from stack.rewrite.log import Lines, Log
from stack.rewrite.passes import BlockPass

# streams with the block after each; or none, why one cannot be built, and its source lines
Apart = tuple[list[tuple[Candidate, Block]], str, Lines | None]


@dataclass(frozen=True)
class Stream(BlockPass, needs=("reduce", "argreduce", "dot", "gather", "concat", "pad", "stream")):
    """Compute dependent reductions over an axis in one loop, with corrected running values.

    Attributes:
        min_axis: shortest axis for a stream without a dot; shorter rows fit into a kernel.
        balance: flops that cost as much as a byte of memory; 0 never computes a dot twice, none
            takes the number of the GPU if loops are `blocks`.
        loops: the kind of kernels. `cpu` takes the streams that cost less than their parts.
            `blocks` does so for chains of matmuls, and takes all others. Empty takes all.
        refuse: ops that the backend has no code for; no stream contains them.
    """

    min_axis: int = 16384
    balance: float | None = None
    loops: str = ""
    refuse: tuple[str, ...] = ()

    def run(self, func: Func, log: Log) -> Func:
        if self.loops == "blocks":
            rules = (
                Simple("stream_argreduce", ("argreduce",), self._position),
                Simple("stream_best", ("reduce",), self._best),
            )
            func = rewrite(func, rules, log)
        return super().run(func, log)

    def _position(self, node: Node, op: Builder, scope: Scope) -> Node | None:
        return streamed_position(node, scope, self.min_axis)

    def _best(self, node: Node, op: Builder, scope: Scope) -> Node | None:
        return streamed_best(node, scope, self.min_axis)

    def change(self, block: Block, log: Log) -> Block:
        if block.ops.isdisjoint(Stream.needs):
            return block
        current = split_rows(block, lambda lines: log.spend("split_rows", lines))
        if self.loops == "blocks":
            current = merge_reduced_axes(
                current, log.gpu, self.min_axis, lambda lines: log.spend("merge_axes", lines)
            )
        refused: set[Node] = set()
        probes: Probes = {}
        # without a matmul, only reductions of long axes stream
        if contractions(current.nodes) or any(self.is_long(n, log) for n in current.nodes):
            while (step := self._step(Graph(current, probes), refused, log)) is not None:
                # new nodes come after the stream; every reduction there was already tried
                refused.update(set(step.nodes).difference(current.nodes))
                current = step
        if "stream" in current.ops:
            current = write_transposed(read_parts(current))
        return transpose_operands(current, log) if self.loops == "cpu" else current

    def is_long(self, node: Node, log: Log) -> bool:
        """True if a node reduces an axis whose rows, or columns on a GPU, do not fit in the
        registers of a kernel."""
        found, least = reduced_value(node), self.min_axis
        if found is None or not isinstance(found[0], int):
            return False
        if self.loops == "blocks":
            least = shortest_streamed(reduces_columns(node), least, log.gpu)
        return found[0] >= least

    def _step(self, graph: Graph, refused: set[Node], log: Log) -> Block | None:
        """Returns the block with one more stream, for the last reduction that can end one, or with
        several streams that share dots. None if there is no further stream."""
        for sink in reversed(graph.nodes):
            found = reduced_value(sink)
            if sink in refused or found is None or found[0] in (0, 1):
                continue
            refused.add(sink)
            candidate, built, why = None, None, ""
            try:
                candidate = Candidate(self, log, graph, sink, refused)
            except Refusal as refusal:
                why = str(refusal)
            if self._balance(log) and (candidate is None or candidate.held):
                made = self._together(graph, sink, log)
                if made is not None:
                    return made
            try:
                built = candidate and candidate.build()
            except Refusal as refusal:
                why = str(refusal)
            if why:
                log.note(f"{graph.name(sink)} is not streamed: {why}", graph.lines([sink]))
            if candidate is None or built is None:
                continue
            if not log.spend("stream", candidate.lines, graph.name(sink)):
                return None
            log.note(candidate.text(), candidate.lines)
            return replace(graph.block, built)
        return None

    def _together(self, graph: Graph, sink: Node, log: Log) -> Block | None:
        """Builds one stream after another for the reductions that end the same dots as `sink`; each
        stream recomputes these dots. Returns the block, or None if one of them cannot be built."""
        name, source = graph.name(sink), graph.lines([sink])
        dots, last = self._closed(graph, sink)
        if not last:
            if dots:
                log.note(f"{name}: {_names(graph, dots)} end in ops no stream computes", source)
            return None
        key = dots, *last
        if key not in graph.apart:  # the same for each reduction that ends these dots
            graph.apart[key] = self._apart(graph, dots, last, log)
        found, why, lines = graph.apart[key]
        if not why and not self._pays(dots, len(found), self._balance(log)):
            why = f"to compute dots in {len(found)} streams costs more than memory"
        if why:
            log.note(f"{name}: {why}", source if lines is None else lines)
            return None
        made: Block | None = None
        for candidate, after in found:
            if log.spend("stream", candidate.lines):
                log.note(candidate.text(), candidate.lines)
                made = after
        return made

    def _apart(self, graph: Graph, dots: frozenset[Node], last: Sequence[Node], log: Log) -> Apart:
        """Builds one stream after another for the reductions `last`, in which dots end. Returns the
        streams; and why one of them cannot be built, with its lines."""
        found: list[tuple[Candidate, Block]] = []
        block = graph.block
        while True:
            graph = Graph(block, graph.probes)
            left = [n for n in last if n in graph.place]
            if not left:
                return found, "", None
            end, lines = graph.name(left[-1]), graph.lines([left[-1]])
            try:
                candidate = Candidate(self, log, graph, left[-1], set(), dots, left)
                built = candidate.build()
            except Refusal as refusal:
                return [], f"{end} does not stream alone: {refusal}", lines
            if built is None:
                return [], f"{end} takes {_names(graph, dots)} from memory", lines
            block = replace(block, built)
            found.append((candidate, block))

    def _balance(self, log: Log) -> float:
        if self.balance is None:
            return log.gpu.balance if self.loops == "blocks" else 0.0
        return self.balance

    def _closed(self, graph: Graph, sink: Node) -> tuple[frozenset[Node], list[Node]]:
        """Returns the dots of `sink`, those of other reductions in which they end, and so on; and
        all these reductions. No reductions if one of the dots ends in another op."""
        dots = dots_of(graph, sink)
        while dots:
            last = ends(graph, dots)
            if last is None:
                return dots, []
            more = dots.union(*(dots_of(graph, n) for n in last))
            if more == dots:
                return dots, last
            dots = more
        return dots, []

    def _pays(self, dots: frozenset[Node], times: int, balance: float) -> bool:
        """True if computing dots in each of `times` streams costs no more than computing them once,
        writing them, and reading them in each."""
        costs = [cost(d) for d in dots]
        flops = sum(c.flops for c in costs if isinstance(c.flops, int))
        held = sum(d.tensor.size * d.dtype.bytes for d in dots if isinstance(d.tensor.size, int))
        return flops * (times - 1) <= balance * held * (times + 1)


def _names(graph: Graph, nodes: Iterable[Node]) -> str:
    return ", ".join(sorted(graph.name(n) for n in nodes))


def dots_of(graph: Graph, sink: Node) -> frozenset[Node]:
    """Returns the dots that a stream which ends in the reduction `sink` could compute tile by tile;
    empty if there is no such stream."""
    with suppress(Refusal):
        return frozenset(region_of(graph, sink, frozenset(), frozenset()).dots)
    return frozenset()


def ends(graph: Graph, dots: Iterable[Node]) -> list[Node] | None:
    """Returns the reductions that read dots, directly or through elementwise ops.

    None if another op or a result of the block needs such a value.
    """
    found: set[Node] = set()
    pending, seen = list(dots), set(dots)
    while pending:
        node = pending.pop()
        if node in graph.results:
            return None
        for user in graph.users.get(node, ()):
            if user in seen:
                continue
            seen.add(user)
            if reduced_value(user) is not None and not reads_by_data(user):
                found.add(user)
            elif moves(user):
                pending.append(user)
            else:
                return None
    return sorted(found, key=lambda n: graph.place[n])
