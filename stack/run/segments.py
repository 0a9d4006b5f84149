"""A rank's program in the order in which it runs: what it computes, and when it meets others.

Collectives start as soon as what they move is there, and are waited for where it is read; between
them lie segments, which a backend may compile. Gradients are computed as soon as they can be, so
that their sums travel while the rest is computed; the update of the weights comes last. Gathered
weights come one segment ahead of their readers, go when these are done, and come again. What is
made by element from no more than it is, or by a stream, is not handed on: segments that read it
make it anew.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from stack.ir import ops
from stack.ir.builder import param
from stack.ir.mesh_ops import is_meeting, is_place
from stack.ir.names import is_inline
from stack.ir.node import Block, Func, Node
from stack.ir.traits import is_contraction, is_formula, is_input, maker, mixes, reads_by_data
from stack.rewrite.streamed import streamed

END = 1 << 60  # behind everything
FEW = 3  # results
LEAST, BUCKETS = 1 << 25, 16  # bytes of a bucket, and how many of them all that moves may fill
Run = tuple[tuple[Node, ...], tuple[Node, ...]]  # what is computed, and collectives behind it


@dataclass(frozen=True)
class Segment:
    """What a rank computes alone.

    Attributes:
        func: of the values of `inputs`, those of `outputs`.
    """

    func: Func
    inputs: tuple[Node, ...]
    outputs: tuple[Node, ...]


@dataclass(frozen=True)
class Meeting:
    """Collectives that start together."""

    nodes: tuple[Node, ...]

    @property
    def inputs(self) -> tuple[Node, ...]:
        return tuple(dict.fromkeys(a for n in self.nodes for a in n.args if not is_inline(a)))

    @property
    def outputs(self) -> tuple[Node, ...]:
        return self.nodes


@dataclass(frozen=True)
class Step:
    """One of the two, and the values that nobody reads after it."""

    work: Segment | Meeting
    last: tuple[Node, ...]


def steps_of(func: Func, bucket: int = 0, again: bool = True, balance: float = 0.0) -> list[Step]:
    """The steps of a rank's program.

    Args:
        bucket: bytes of collectives that wait for each other before a segment ends for them; 0
            takes a share of all that moves: enough to fill a link, and few enough to go by while
            the rest is computed.
        again: whether gathered parameters are dropped and gathered again.
        balance: operations of products in the time of one byte, where what computes segments has
            streams: then scores of attention are not handed on, see `stack.rewrite.streamed`.
    """
    if not bucket:
        bucket = max(LEAST, sum(_bytes(n) for n in func.nodes if is_meeting(n)) // BUCKETS)
    works = _ahead(_cut(func, _bucketed(_ordered(func), bucket), bucket, balance))
    if again:
        works = _gathered_again(works)
    return _with_ends(works, set(func.results) | set(func.params))


# ---- order


def _ordered(func: Func) -> list[Node]:
    """Nodes, with what only one result needs right behind what it is computed from."""
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
    for node in reversed(func.nodes):  # what is made of parameters alone waits for its readers
        if node not in at:
            at[node] = min((at[u] for u in users.get(node, ())), default=END)
    place = {node: (at[maker(node)], order[maker(node)], order[node]) for node in func.nodes}
    return sorted(func.nodes, key=place.__getitem__)  # one result of several behind its node


def _waits(node: Node, tails: set[Node]) -> bool:
    """Whether a node reads what travels while gradients are computed: the update does."""
    return any(is_meeting(a) and a in tails for a in node.args)


def _bucketed(order: Sequence[Node], bucket: int) -> list[Node]:
    """Gathers of parameters where the first of them is needed, as many as fill a bucket."""
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
    """Whether a collective needs nothing but parameters."""
    return is_meeting(node) and all(is_input(a) for a in node.args)


def _tails(func: Func) -> set[Node]:
    """Nodes that few results are computed from: a gradient is for a weight and its moments."""
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


def _cut(func: Func, order: Sequence[Node], bucket: int, balance: float) -> list[Segment | Meeting]:
    """What is computed, and collectives between."""
    sources = _sources(order, streamed(order, func.results, balance))
    place = {node: i for i, node in enumerate(order)}
    last = {leaf: i for i, n in enumerate(order) for a in n.args for leaf in sources.get(a, ())}
    runs = _Runs(bucket, place, last)
    for node in order:
        if not is_inline(node):
            runs.add(node)
    return _segments(func, runs.ended(), sources, place)


@dataclass
class _Runs:
    """Runs of what is computed, each with the collectives that start behind it.

    Where collectives fill a bucket a run ends, or later where it then hands on so much less; before
    what reads them, so that the rest is computed while they travel; and around what asks for the
    rank's place, which backends do not know.

    Attributes:
        place, last: of nodes, where they stand and where they are last read.
        inside, waiting: the newest run, and its collectives; the first `full` nodes of the run come
            before the newest of these.
        coming: collectives that nobody has read yet, with those that started together.
    """

    bucket: int
    place: Mapping[Node, int]
    last: Mapping[Node, int]
    found: list[Run] = field(default_factory=list[Run])
    inside: list[Node] = field(default_factory=list[Node])
    waiting: list[Node] = field(default_factory=list[Node])
    full: int = 0
    coming: dict[Node, tuple[Node, ...]] = field(default_factory=dict[Node, tuple[Node, ...]])

    def add(self, node: Node) -> None:
        """The next node in order."""
        if any(a in self.waiting for a in node.args) or (is_meeting(node) and self._is_full()):
            self._start()
        read = [self.coming[a] for a in node.args if a in self.coming]
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
        """All of them."""
        self._start()
        self._end(len(self.inside), ())
        return self.found

    def _is_full(self) -> bool:
        return sum(map(_bytes, self.waiting)) >= self.bucket

    def _start(self) -> None:
        """Let collectives start that wait."""
        started = tuple(self.waiting)
        self._end(self._least() if self._is_full() else len(self.inside), started)
        self.coming.update(dict.fromkeys(started, started))
        self.waiting.clear()

    def _end(self, count: int, started: tuple[Node, ...]) -> None:
        self.found.append((tuple(self.inside[:count]), started))
        del self.inside[:count]
        self.full = max(0, self.full - count)

    def _least(self) -> int:
        """Where the run ends at best."""
        handed = _handed(self.inside, self.place, self.last)[self.full :]
        best = min(range(len(handed)), key=handed.__getitem__)
        return self.full + best * (handed[0] - handed[best] > sum(map(_bytes, self.waiting)))


def _handed(run: Sequence[Node], place: Mapping[Node, int], last: Mapping[Node, int]) -> list[int]:
    """The bytes that a run hands on, by the number of its nodes that belong to it."""
    places = [place[node] for node in run]
    change = [0] * (len(run) + 2)
    for number, node in enumerate(run, start=1):
        read = last.get(node, -1)
        end = bisect_right(places, read) + (read > places[-1])
        change[number] += _size(node)
        change[max(end, number)] -= _size(node)
    return list(accumulate(change[:-1]))


def _segments(
    func: Func,
    runs: Sequence[Run],
    sources: Mapping[Node, frozenset[Node]],
    place: Mapping[Node, int],
) -> list[Segment | Meeting]:
    """Runs as functions, each with copies of what it makes anew."""
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


def _sources(order: Sequence[Node], cheap: frozenset[Node]) -> dict[Node, frozenset[Node]]:
    """For each node what a segment reads for it: the node, or no more than that to make it anew."""
    found: dict[Node, frozenset[Node]] = {}
    for node in order:
        found[node] = frozenset({node})
        is_mapped = ops.lookup(node.op).kind in ("elementwise", "movement") and not mixes(node)
        if node in cheap or is_formula(node) or (is_mapped and not reads_by_data(node)):
            args = [a for a in node.args if not is_inline(a)]
            read = frozenset[Node]().union(*(found.get(a, {a}) for a in args))
            if sum(map(_size, read)) <= _size(node):
                found[node] = read
    return found


def _with_copies(run: Sequence[Node], sources: Mapping[Node, frozenset[Node]]) -> dict[Node, None]:
    """A run, and what it makes anew."""
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


def _size(node: Node) -> int:
    return sum(int(str(t.bytes)) for t in node.types)


def _bytes(node: Node) -> int:
    """Of what a collective takes or makes, the larger."""
    return max(map(_size, (node, *node.args)))


# ---- gathered parameters


def _gathers(work: Segment | Meeting) -> bool:
    return isinstance(work, Meeting) and all(map(_is_gather, work.nodes))


def _ahead(works: Sequence[Segment | Meeting]) -> list[Segment | Meeting]:
    """Gathers of parameters start before the segment that is computed meanwhile."""
    found: list[Segment | Meeting] = []
    for work in works:
        is_late = _gathers(work) and found and isinstance(found[-1], Segment)
        found.insert(len(found) - 1 if is_late else len(found), work)
    return found


def _gathered_again(works: Sequence[Segment | Meeting]) -> list[Segment | Meeting]:
    """Each gathered parameter anew where its readers are far apart."""
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


def _with_ends(works: Sequence[Segment | Meeting], kept: set[Node]) -> list[Step]:
    """For each step the values that are not read again before they are made again, or at all."""
    ends: list[tuple[Node, ...]] = []
    needed = set(kept)
    for work in reversed(works):
        touched = dict.fromkeys((*work.inputs, *work.outputs))
        ends.append(tuple(n for n in touched if n not in needed))
        needed = needed - (set(work.outputs) - kept) | set(work.inputs)
    return [Step(work, last) for work, last in zip(works, reversed(ends), strict=True)]
