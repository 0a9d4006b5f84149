"""Simulate a rank's program on an unavailable machine, with two streams on every rank.

Steps run in program order. A segment starts when the compute stream is free and its inputs are
ready. A collective starts when the communication streams of all its ranks are free. Ranks with
equal speed and equal masks that communicate with equal ranks form a class, and each class is
simulated once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from stack.errors import UsageError
from stack.ir.func import Func
from stack.ir.node import Node
from stack.mesh.meshes import Axes, Mesh
from stack.mesh.ops import group_of
from stack.sim.costs import collective_seconds, compute_seconds, stored_bytes
from stack.sim.flights import Flights
from stack.sim.machines import Cluster
from stack.sim.recomputed import size_of
from stack.sim.segments import Meeting, Segment, SegmentStep, steps_of
from stack.sim.visible import SegmentPositions


@dataclass(frozen=True)
class Event:
    """A time span, in seconds, in which one stream of a rank is busy with the step `name`. The rank
    represents all ranks of its class.
    """

    rank: int
    stream: str
    name: str
    start: float
    end: float


@dataclass(frozen=True)
class Simulation:
    """Result of a simulated run.

    Attributes:
        classes: the first rank of each class, with the number of ranks in it.
        events: on the first rank of each class.
        memory: bytes in use over time, (seconds, bytes), with operands of collectives in flight.
        allocated: peak bytes in use, including those that segments store while they run.
    """

    seconds: float
    classes: tuple[tuple[int, int], ...]
    events: tuple[Event, ...]
    memory: tuple[tuple[float, int], ...]
    allocated: int

    def __str__(self) -> str:
        return (
            f"{self.seconds * 1e3:.4g} ms, of which {self.exposed * 1e3:.3g} ms are communication"
            f" that is not hidden; {self.allocated / 2**20:.4g} MiB of memory"
        )

    @property
    def peak(self) -> int:
        """Peak bytes in use between steps."""
        return max(held for _, held in self.memory)

    def busy(self, stream: str) -> float:
        """Returns the seconds in which a stream of the first rank is busy."""
        return sum(e.end - e.start for e in self.events if (e.stream, e.rank) == (stream, 0))

    @property
    def exposed(self) -> float:
        """Seconds in which the first rank only communicates or waits."""
        return self.seconds - self.busy("compute")


def simulate(
    local: Func,
    mesh: Mesh,
    machine: Cluster,
    slow: Mapping[int, float] | None = None,
    bucket: int = 0,
) -> Simulation:
    """Simulates one run of a rank's program on all ranks of a mesh.

    Args:
        slow: factor by which the computation of some ranks is slower, by rank.
        bucket: see `steps_of`.
    """
    slow = slow or {}
    wrong = [rank for rank in slow if not 0 <= rank < mesh.ranks]
    if wrong:
        raise UsageError(f"mesh {mesh} has no ranks {wrong}")
    steps = steps_of(local, bucket, balance=machine.stream_balance)
    overs = [_over(node) for s in steps if isinstance(s.work, Meeting) for node in s.work.nodes]
    segments = [s.work for s in steps if isinstance(s.work, Segment)]
    positions = SegmentPositions(segments, machine.stream_balance)
    color = [
        (slow.get(rank, 1.0), *(mesh.number(rank, over) for over in positions.axes))
        for rank in range(mesh.ranks)
    ]
    classes, meets = _classes(mesh, list(dict.fromkeys(overs)), color)
    return _Clock(local, mesh, machine, slow, classes, meets, positions).run(steps)


def _over(node: Node) -> Axes:
    if node.op != "permute":
        return group_of(node.attrs)[1]
    return ()


def computed(
    start: float, alone: float, flights: Iterable[tuple[float, float]], beside: float
) -> float:
    """Returns when a computation ends that takes `alone` seconds if nothing else runs.

    Args:
        flights: start and end of the rank's collectives, in order.
        beside: relative time of computation beside a collective in flight.
    """
    for first, last in flights:
        if last <= start:
            continue
        before = max(0.0, first - start)
        if alone <= before:
            break
        start, alone = max(start, first), alone - before
        slowed = min(last - start, alone * beside)
        start, alone = start + slowed, alone - slowed / beside
    return start + alone


Classes = dict[int, int]  # maps each rank to the first rank of its class


def _classes(
    mesh: Mesh, overs: Sequence[Axes], color: Sequence[object]
) -> tuple[Classes, dict[Axes, dict[int, frozenset[int]]]]:
    """Partitions ranks into classes of equal colors whose peers are of equal classes: refinement.
    Returns the first rank of each rank's class, and for each set of axes in `overs` the classes in
    each rank's group.
    """
    groups = {over: mesh.groups(over) for over in overs if over}
    count = 0
    while True:
        kinds: dict[object, int] = {}
        first = [kinds.setdefault(c, rank) for rank, c in enumerate(color)]
        met: dict[Axes, dict[int, frozenset[int]]] = {}
        for over, found in groups.items():
            met[over] = {}
            for group in found:
                inside = frozenset(first[rank] for rank in group)
                met[over].update((rank, inside) for rank in group)
        if len(kinds) == count:
            return dict(enumerate(first)), met
        count = len(kinds)
        color = [(first[rank], *(met[over][rank] for over in groups)) for rank in range(mesh.ranks)]


class _Clock:
    def __init__(
        self,
        local: Func,
        mesh: Mesh,
        machine: Cluster,
        slow: Mapping[int, float],
        classes: Classes,
        meets: Mapping[Axes, Mapping[int, frozenset[int]]],
        positions: SegmentPositions,
    ) -> None:
        self.local, self.mesh, self.machine, self.slow = local, mesh, machine, slow
        self.first = sorted(set(classes.values()))
        self.sizes = {f: sum(c == f for c in classes.values()) for f in self.first}
        self.meets, self.positions = meets, positions
        self.free = {(f, s): 0.0 for f in self.first for s in ("compute", "communicate")}
        self.there: dict[tuple[int, Node], float] = {}
        self.flights = {f: list[tuple[float, float]]() for f in self.first}  # of collectives
        self.events: list[Event] = []
        self.known: dict[tuple[object, ...], float] = {}
        self.stored: dict[Func, int] = {}

    def run(self, steps: Sequence[SegmentStep]) -> Simulation:
        held = {p: size_of(p) for p in self.local.params}
        started = Flights()
        memory = [(0.0, sum(held.values()))]
        allocated = 0
        for step in steps:
            for node in step.work.inputs:
                started.land(node)
            before = _total(held, started)
            if isinstance(step.work, Segment):
                self._compute(step.work)
                allocated = max(allocated, before + self._stores(step.work.func))
            else:
                for node in step.work.nodes:
                    self._meet(node)
                    started.start(node)
            held.update((n, size_of(n)) for n in step.work.outputs)
            now = _total(held, started)
            memory.append((self.free[self.first[0], "compute"], now))
            for node in step.last:
                held.pop(node, None)
        ends = (*self.free.values(), *self.there.values())
        classes = tuple((f, self.sizes[f]) for f in self.first)
        allocated = max(allocated, *(count for _, count in memory))
        return Simulation(max(ends), classes, tuple(self.events), tuple(memory), allocated)

    def _stores(self, func: Func) -> int:
        if func not in self.stored:
            self.stored[func] = stored_bytes(func, self.machine)
        return self.stored[func]

    def _compute(self, segment: Segment) -> None:
        name = _title(segment)
        for rank in self.first:
            values = self.positions.on(rank, segment)
            key = (segment.func, *values.key)
            taken = self.known.get(key)
            if taken is None:
                taken = self.known[key] = compute_seconds(segment.func, self.machine, values)
            ready = max((self.there.get((rank, n), 0.0) for n in segment.inputs), default=0.0)
            start = max(self.free[rank, "compute"], ready)
            alone = taken * self.slow.get(rank, 1.0)
            end = computed(start, alone, self.flights[rank], self.machine.beside)
            self._note(rank, "compute", name, start, end, segment.outputs)

    def _meet(self, node: Node) -> None:
        over = _over(node)
        key = (node.op, over, node.args[0].type)
        if key not in self.known:
            self.known[key] = collective_seconds(node, self.mesh, self.machine)
        # a stream of collectives waits for all computation that was launched before
        ready = {
            rank: max(self.free[rank, "communicate"], self.free[rank, "compute"])
            for rank in self.first
        }
        for rank in self.first:
            others = self.meets[over][rank] if over else self.first
            start = max(ready[other] for other in others)
            end = start + self.known[key]
            self.flights[rank].append((start, end))
            self._note(rank, "communicate", node.op, start, end, (node,))

    def _note(
        self, rank: int, stream: str, name: str, start: float, end: float, made: Sequence[Node]
    ) -> None:
        self.events.append(Event(rank, stream, name, start, end))
        self.free[rank, stream] = end
        # a stream sees its own results at once, the other stream sees them at the end
        self.there.update(((rank, node), end) for node in made)


def _title(segment: Segment) -> str:
    ops = [n.op for n in segment.func.nodes]
    products = ops.count("dot")
    return f"{products} dot" if products else f"{len(ops)} ops"


def _total(held: Mapping[Node, int], started: Flights) -> int:
    """Returns the bytes of held values, and of other operands of collectives in flight."""
    return sum(held.values()) + sum(map(size_of, set(started.operands()).difference(held)))
