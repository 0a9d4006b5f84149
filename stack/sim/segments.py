"""A rank's program in execution order: segments of computation, and collectives between them.

Collectives start as soon as their inputs are ready, and are waited for when their results are read.
Between them are segments, which a backend may compile. Gradients are computed as early as possible,
so that their reductions overlap with the rest; the update of the weights comes last. Gathered
weights arrive one segment before their use, are dropped afterwards, and gathered again. Values that
are elementwise functions of no larger inputs, or computed by a stream, are not passed between
segments: segments that read them recompute them.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from stack.ir.builder import param
from stack.ir.func import Func
from stack.ir.node import Block, Node, is_inline
from stack.ir.traits import is_contraction, is_input, maker
from stack.mesh.ops import is_meeting, is_place
from stack.rewrite.stream_candidates import streamed
from stack.sim.recomputed import size_of, sources_of
from stack.sim.stream_order import Needs, in_stream_order, stream_needs

END = 1 << 60  # a position after all others
FEW = 3  # results
LEAST, BUCKETS = 1 << 25, 16  # minimum bytes of a bucket, and maximum number of buckets
Run = tuple[tuple[Node, ...], tuple[Node, ...]]  # computation, and the collectives after it


@dataclass(frozen=True)
class Segment:
    """A part of a rank's program, without communication, that runs between two collectives.

    Attributes:
        func: computes `outputs` from `inputs`.
    """

    func: Func
    inputs: tuple[Node, ...]
    outputs: tuple[Node, ...]


@dataclass(frozen=True)
class Meeting:
    """Collectives of a rank's program that start at the same time."""

    nodes: tuple[Node, ...]

    @property
    def inputs(self) -> tuple[Node, ...]:
        return tuple(dict.fromkeys(a for n in self.nodes for a in n.args if not is_inline(a)))

    @property
    def outputs(self) -> tuple[Node, ...]:
        return self.nodes


@dataclass(frozen=True)
class SegmentStep:
    """One segment of computation, or one group of collectives, and the values that no later step
    needs.
    """

    work: Segment | Meeting
    last: tuple[Node, ...]


def steps_of(
    func: Func, bucket: int = 0, again: bool = True, balance: float = 0.0
) -> list[SegmentStep]:
    """Cuts a rank's program into steps: segments of computation, and the collectives between them.

    Args:
        bucket: bytes of collectives that are collected before a segment ends for them. 0 chooses a
            share of the total traffic: large enough to fill a link, and small enough to overlap
            with the computation.
        again: True if gathered parameters are dropped and gathered again.
        balance: matmul operations in the time of one byte of memory traffic, if segments are
            compiled by a backend with streams. Then attention scores are not passed between
            segments, see `stack.rewrite.stream_candidates`.
    """
    if not bucket:
        bucket = max(LEAST, sum(_bytes(n) for n in func.nodes if is_meeting(n)) // BUCKETS)
    order = _bucketed(_ordered(func), bucket)
    inner = streamed(order, func.results, balance)
    needs = stream_needs(order, inner)
    works = _ahead(_cut(func, in_stream_order(order, needs), bucket, inner, needs))
    if again:
        works = _gathered_again(works)
    return _with_ends(works, set(func.results) | set(func.params))


def beside_collectives(steps: Sequence[SegmentStep]) -> frozenset[Segment]:
    """Returns the segments that compute while a collective is in flight: it has started, and no
    step has read its result yet.
    """
    flying, found = set[Node](), set[Segment]()
    for step in steps:
        flying.difference_update(step.work.inputs)
        if isinstance(step.work, Meeting):
            flying.update(step.work.nodes)
        elif flying:
            found.add(step.work)
    return frozenset(found)


# ---- order


def _ordered(func: Func) -> list[Node]:
    """Sorts nodes for execution. Those that only few results need, as gradients of weights, come
    right after their inputs; those that wait for a collective of such values, as the update of a
    weight, come last.
    """
    order = {node: i for i, node in enumerate(func.nodes)}
    tails = _tails(func)
    at: dict[Node, int] = {}
    for node in func.nodes:
        before = [at[a] for a in node.args if a in at]
        if node not in tails:
            at[node] = order[node]
        elif END in before or (_waits(node, tails) and not is_contraction(node)):
            at[node] = END
        elif before:
            at[node] = max(before)
    users = _users(func.nodes)
    for node in reversed(func.nodes):  # of parameters alone: just before their users
        if node not in at:
            at[node] = min((at[u] for u in users.get(node, ())), default=END)
    place = {node: (at[maker(node)], order[maker(node)], order[node]) for node in func.nodes}
    return sorted(func.nodes, key=place.__getitem__)  # items come after their node


def _waits(node: Node, tails: set[Node]) -> bool:
    """True if a node reads a collective of a gradient (see `_tails`), as the update of a weight
    does. It runs late, so that the collective overlaps with other gradients.
    """
    return any(is_meeting(a) and a in tails for a in node.args)


def _bucketed(order: Sequence[Node], bucket: int) -> list[Node]:
    """Collects gathers of parameters in buckets of `bucket` bytes, and moves all gathers of a
    bucket to the position of its first one.
    """
    found: list[list[Node]] = []
    room, group = 0, list[Node]()
    for node in order:
        if not _is_gather(node):
            found.append([node])
            continue
        if room < _bytes(node):
            room, group = bucket, list[Node]()
            found.append(group)
        group.append(node)
        room -= _bytes(node)
    return [node for group in found for node in group]


def _is_gather(node: Node) -> bool:
    """True if a node is a collective whose operands all are parameters, as the gather of a sharded
    weight.
    """
    return is_meeting(node) and all(is_input(a) for a in node.args)


def _tails(func: Func) -> set[Node]:
    """Nodes on which at most `FEW` results depend. They belong to one weight: its gradient affects
    only the new weight and its moments.
    """
    users = _users(func.nodes)
    reached: dict[Node, frozenset[Node]] = {}
    results = set(func.results)
    for node in reversed(func.nodes):
        own = frozenset({node} & results)
        reached[node] = own.union(*(reached[u] for u in users.get(node, ())))
    return {n for n, found in reached.items() if len(found) <= FEW}


def _users(nodes: Iterable[Node]) -> dict[Node, list[Node]]:
    found: dict[Node, list[Node]] = {}
    for node in nodes:
        for arg in dict.fromkeys(node.args):
            found.setdefault(arg, []).append(node)
    return found


# ---- segments


def _cut(
    func: Func, order: Sequence[Node], bucket: int, inner: frozenset[Node], needs: Needs
) -> list[Segment | Meeting]:
    """Cuts a rank's nodes, in execution order, into segments of computation and the collectives
    between them. Segments recompute `inner` nodes, those of streams, which read `needs`.
    """
    sources = sources_of(order, inner)
    place = {node: i for i, node in enumerate(order)}
    last = {leaf: i for i, n in enumerate(order) for a in n.args for leaf in sources.get(a, ())}
    runs = _Runs(bucket, place, last, needs)
    for node in order:
        if not is_inline(node):
            runs.add(node)
    return _segments(func, runs.ended(), sources, place)


@dataclass
class _Runs:
    """Builds runs of computation, each with the collectives that start after it.

    A run ends when collectives fill a bucket, or later if that reduces the bytes passed on enough.
    It also ends before a reader of collectives, so that the rest is computed while they are in
    flight, and around nodes that depend on the rank's coordinates, which backends do not support.

    Attributes:
        place, last: position of each node, and of its last use.
        needs: values besides its operands that have to be there before a node, see `stream_needs`.
        inside, waiting: the current run and its collectives; the first `full` nodes of the run come
            before the newest of these.
        coming: collectives without a reader so far, with those that started together.
    """

    bucket: int
    place: Mapping[Node, int]
    last: Mapping[Node, int]
    needs: Needs
    found: list[Run] = field(default_factory=list[Run])
    inside: list[Node] = field(default_factory=list[Node])
    waiting: list[Node] = field(default_factory=list[Node])
    full: int = 0
    coming: dict[Node, tuple[Node, ...]] = field(default_factory=dict[Node, tuple[Node, ...]])

    def add(self, node: Node) -> None:
        """Adds the next node in order."""
        args = (*node.args, *self.needs.get(node, ()))
        if any(a in self.waiting for a in args) or (is_meeting(node) and self._is_full()):
            self._start()
        read = [self.coming[a] for a in args if a in self.coming]
        for together in read:
            for other in together:
                self.coming.pop(other, None)
        if is_meeting(node):
            self.waiting.append(node)
            self.full = len(self.inside)
            return
        if read or (self.inside and is_place(self.inside[-1]) != is_place(node)):
            self._end(len(self.inside), ())
        self.inside.append(node)

    def ended(self) -> list[Run]:
        """Starts the remaining collectives, ends the last run, and returns all runs."""
        self._start()
        self._end(len(self.inside), ())
        return self.found

    def _is_full(self) -> bool:
        return sum(map(_bytes, self.waiting)) >= self.bucket

    def _start(self) -> None:
        """Ends the current run and lets the waiting collectives start after it."""
        started = tuple(self.waiting)
        self._end(self._least() if self._is_full() else len(self.inside), started)
        self.coming.update(dict.fromkeys(started, started))
        self.waiting.clear()

    def _end(self, count: int, started: tuple[Node, ...]) -> None:
        self.found.append((tuple(self.inside[:count]), started))
        del self.inside[:count]
        self.full = max(0, self.full - count)

    def _least(self) -> int:
        """The number of nodes after which the current run should end: where it passes on the fewest
        bytes, if that saves more than the bytes of the waiting collectives; else as early as these
        can start.
        """
        handed = _handed(self.inside, self.place, self.last)[self.full :]
        best = min(range(len(handed)), key=handed.__getitem__)
        return self.full + best * (handed[0] - handed[best] > sum(map(_bytes, self.waiting)))


def _handed(run: Sequence[Node], place: Mapping[Node, int], last: Mapping[Node, int]) -> list[int]:
    """For each number of nodes, from 0 to all: the bytes of values that these first nodes of a run
    compute and later nodes read, if the run ended there.
    """
    places = [place[node] for node in run]
    change = [0] * (len(run) + 2)
    for number, node in enumerate(run, start=1):
        read = last.get(node, -1)
        end = bisect_right(places, read) + (read > places[-1])
        change[number] += size_of(node)
        change[max(end, number)] -= size_of(node)
    return list(accumulate(change[:-1]))


def _segments(
    func: Func,
    runs: Sequence[Run],
    sources: Mapping[Node, frozenset[Node]],
    place: Mapping[Node, int],
) -> list[Segment | Meeting]:
    """Converts runs to functions, each with copies of the nodes that it recomputes, and puts the
    collectives that start after a run behind it.
    """
    whole = [sorted(_with_copies(run, sources), key=place.__getitem__) for run, _ in runs]
    read = set(func.results)
    for full, (_, waiting) in zip(whole, runs, strict=True):
        own = set(full)
        read.update(a for n in full for a in n.args if a not in own)
        read.update(a for n in waiting for a in n.args)
    works: list[Segment | Meeting] = []
    for full, (inside, waiting) in zip(whole, runs, strict=True):
        outputs = [n for n in inside if n in read]
        if outputs:
            works.append(_segment(func, full, outputs))
        if waiting:
            works.append(Meeting(waiting))
    return works


def _with_copies(run: Sequence[Node], sources: Mapping[Node, frozenset[Node]]) -> dict[Node, None]:
    """Returns the nodes of a segment, and those outside of it that the segment computes again
    because their values are not passed between segments.
    """
    found = dict.fromkeys(run)
    pending = [a for n in run for a in n.args]
    while pending:
        node = pending.pop()
        if node not in found and node not in sources.get(node, {node}):
            found[node] = None
            pending += node.args
    return found


def _segment(func: Func, inside: Sequence[Node], outputs: Sequence[Node]) -> Segment:
    own = set(inside)
    found = (a for n in inside for a in n.args if a not in own and not is_inline(a))
    inputs = tuple(dict.fromkeys(found))
    done = {n: param(f"p{i}", n.type) for i, n in enumerate(inputs)}
    for node in inside:
        args = [done.get(a, a) for a in node.args]
        done[node] = Node(node.op, args, node.attrs, node.type, node.blocks)
    # without names and lines, so that equal layers are one function
    body = Block([done[n] for n in inputs], [done[n] for n in outputs])
    return Segment(Func("segment", body, func.level), inputs, tuple(outputs))


def _bytes(node: Node) -> int:
    """Returns the size in bytes of a collective's result or of its largest operand, whichever is
    larger.
    """
    return max(map(size_of, (node, *node.args)))


# ---- gathered parameters


def _gathers(work: Segment | Meeting) -> bool:
    return isinstance(work, Meeting) and all(map(_is_gather, work.nodes))


def _ahead(works: Sequence[Segment | Meeting]) -> list[Segment | Meeting]:
    """Moves gathers of parameters that directly follow a segment before it, so that they overlap
    with it.
    """
    found: list[Segment | Meeting] = []
    for work in works:
        is_late = _gathers(work) and found and isinstance(found[-1], Segment)
        found.insert(len(found) - 1 if is_late else len(found), work)
    return found


def _gathered_again(works: Sequence[Segment | Meeting]) -> list[Segment | Meeting]:
    """Gathers a parameter again before a reader that is more than 3 steps after the last one, so
    that it need not stay in memory between them.
    """
    gathers = {n for work in works if _gathers(work) for n in work.outputs}
    seen: dict[Node, int] = {}
    at: dict[int, list[Node]] = {}
    for number, work in enumerate(works):
        for node in work.inputs:
            if node in gathers:
                if number - seen.get(node, number) > 3:
                    at.setdefault(max(number - 1, 0), []).append(node)
                seen[node] = number
    found: list[Segment | Meeting] = []
    for number, work in enumerate(works):
        if number in at:
            found.append(Meeting(tuple(at[number])))
        found.append(work)
    return found


def _with_ends(works: Sequence[Segment | Meeting], kept: set[Node]) -> list[SegmentStep]:
    """Pairs each segment or group of collectives with the values that can be freed after it: no
    later step reads them, or only after computing them again. Values in `kept` stay.
    """
    ends: list[tuple[Node, ...]] = []
    needed = set(kept)
    for work in reversed(works):
        touched = dict.fromkeys((*work.inputs, *work.outputs))
        ends.append(tuple(n for n in touched if n not in needed))
        needed = needed - (set(work.outputs) - kept) | set(work.inputs)
    return [SegmentStep(work, last) for work, last in zip(works, reversed(ends), strict=True)]
