"""Simulate a pipeline on an unavailable machine: stages in schedule order, and messages."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from stack.sim.costs import (
    compute_seconds,
    link_between,
    message_seconds,
    ring_seconds,
    stored_bytes,
)
from stack.sim.machines import Cluster
from stack.sim.pipeline import ChunkProgram, Work
from stack.sim.run import Event, Simulation, computed

Place = tuple[str, int]
Value = tuple[str, int]  # its name, and the number of the microbatch


def simulate_stages(
    parts: Mapping[Place, ChunkProgram],
    orders: Sequence[Sequence[Work]],
    machine: Cluster,
    replicas: int = 1,
) -> Simulation:
    """Simulates one training step of pipeline parallelism, without the update of the weights.

    Gradients of microbatches are summed. Replicas of a stage reduce a sum after the last
    microbatch, beside the work that is left.

    Args:
        parts: the program of each kind of work and chunk; chunk c is on stage c % len(orders).
        orders: the work of each stage, in order.
        replicas: ranks of a stage, which are neighbours. Each is simulated as the first one.

    Raises KeyError for a value that is read before it is computed.
    """
    return _Stages(parts, orders, machine, replicas).run()


@dataclass
class _Stages:
    parts: Mapping[Place, ChunkProgram]
    orders: Sequence[Sequence[Work]]
    machine: Cluster
    replicas: int
    there: dict[tuple[Value, int], float] = field(default_factory=dict[tuple[Value, int], float])
    events: list[Event] = field(default_factory=list[Event])

    def __post_init__(self) -> None:
        self.makers = {name: at for at, part in self.parts.items() for name in part.makes}
        self.taken = {at: compute_seconds(p.func, self.machine) for at, p in self.parts.items()}
        read = {name for part in self.parts.values() for name in part.reads}
        self.gradients = {n for p in self.parts.values() for n in p.makes if n not in read}
        self.ranks = len(self.orders) * self.replicas
        self.near = link_between(range(self.replicas), self.machine.links)
        self.flights: list[list[tuple[float, float]]] = [[] for _ in self.orders]
        self.seen: Counter[tuple[int, str]] = Counter()

    def run(self) -> Simulation:
        left = [[w for w in own if (w.kind, w.chunk) in self.parts] for own in self.orders]
        free = [0.0] * len(left)
        while any(left):
            ready = [
                (max(free[r], at), r)
                for r, own in enumerate(left)
                if own and (at := self._ready(own[0], r)) is not None
            ]
            start, rank = min(ready)
            free[rank] = self._do(left[rank].pop(0), rank, start)
        ends = [*free, *(end for flights in self.flights for _, end in flights)]
        memory = [self._memory(rank) for rank in range(len(left))]
        worst = max(memory, key=lambda own: own[1])
        classes = tuple((rank, 1) for rank in range(len(left)))
        return Simulation(max(ends), classes, tuple(self.events), worst[0], worst[1])

    def _ready(self, work: Work, rank: int) -> float | None:
        """Returns the time when the inputs of some work are ready, or None if not yet known."""
        names = [n for n in self.parts[work.kind, work.chunk].reads if n in self.makers]
        times = [self.there.get(((n, work.batch), rank)) for n in names]
        return None if None in times else max((t for t in times if t is not None), default=0.0)

    def _do(self, work: Work, rank: int, start: float) -> float:
        at = (work.kind, work.chunk)
        part = self.parts[at]
        sizes = dict(zip(part.makes, (int(str(r.tensor.bytes)) for r in part.func.results)))
        added = [n for n in sizes if n in self.gradients and self.seen[rank, n]]
        alone = self.taken[at] + sum(self._adding(sizes[n]) for n in added)
        end = computed(start, alone, self.flights[rank], self.machine.beside)
        self.events.append(Event(rank, "compute", _title(work), start, end))
        for name, size in sizes.items():
            for other in range(len(self.orders)):
                sent = message_seconds(size, self.machine, self.ranks) if other != rank else 0.0
                self.there[(name, work.batch), other] = end + sent
            if name in self.gradients:
                self.seen[rank, name] += 1
                if self.seen[rank, name] == self._batches(at, rank) and self.replicas > 1:
                    self._reduce(rank, size, end)
        return end

    def _adding(self, size: int) -> float:
        """Returns the seconds of adding a gradient of so many bytes to the sum of others."""
        return self.machine.launch + 3 * size / self.machine.traffic_rate

    def _batches(self, at: Place, rank: int) -> int:
        return sum((w.kind, w.chunk) == at for w in self.orders[rank])

    def _reduce(self, rank: int, size: int, ready: float) -> None:
        """Starts the all-reduce of a gradient."""
        flights = self.flights[rank]
        start = max(ready, flights[-1][1] if flights else 0.0)
        end = start + ring_seconds("all_reduce", self.replicas, size, self.near)
        flights.append((start, end))
        self.events.append(Event(rank, "communicate", "all_reduce", start, end))

    def _memory(self, rank: int) -> tuple[tuple[tuple[float, int], ...], int]:
        """Returns a rank's bytes over time and the peak: weights, gradients, saved values."""
        order = [w for w in self.orders[rank] if (w.kind, w.chunk) in self.parts]
        works = [(work, self.parts[work.kind, work.chunk]) for work in order]
        ends = {(e.name, e.rank): e.end for e in self.events}
        sizes = {name: size for _, part in works for name, size in _sizes(part)}
        last = {(n, w.batch): number for number, (w, part) in enumerate(works) for n in part.reads}
        weights = sum(sizes[n] for n in {n for n, _ in last} - set(self.makers))
        gradients: dict[str, int] = {}
        held: dict[Value, int] = {}
        found, most = [(0.0, weights)], 0
        for number, (work, part) in enumerate(works):
            reads, makes = (
                {(n, work.batch): sizes[n] for n in names if n in self.makers}
                for names in (part.reads, part.makes)
            )
            held |= reads
            before = weights + sum(held.values()) + sum(gradients.values())
            most = max(most, before + stored_bytes(part.func, self.machine))
            held |= {value: size for value, size in makes.items() if last.get(value, -1) >= number}
            gradients.update((n, sizes[n]) for n in part.makes if n in self.gradients)
            now = weights + sum(held.values()) + sum(gradients.values())
            found.append((ends[_title(work), rank], now))
            held = {v: size for v, size in held.items() if last[v] > number}
        return tuple(found), max(most, *(now for _, now in found))


def _sizes(part: ChunkProgram) -> Iterator[tuple[str, int]]:
    """Yields the name and bytes of each input and output of a program of the pipeline."""
    nodes = (*part.func.params, *part.func.results)
    for name, node in zip((*part.reads, *part.makes), nodes, strict=True):
        yield name, int(str(node.tensor.bytes))


def _title(work: Work) -> str:
    return f"{work.kind}{work.batch} of chunk {work.chunk}"
