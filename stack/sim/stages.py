"""Simulate a pipeline on an unavailable machine: stages in schedule order, and messages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from stack.sim.costs import compute_seconds, link_between, stored_bytes
from stack.sim.machines import Cluster
from stack.sim.pipeline import ChunkProgram, Work
from stack.sim.run import Event, Simulation

Place = tuple[str, int]
Value = tuple[str, int]  # its name, and the number of the microbatch


def simulate_stages(
    parts: Mapping[Place, ChunkProgram], orders: Sequence[Sequence[Work]], machine: Cluster
) -> Simulation:
    """Simulates one training step of pipeline parallelism, without the update of the weights.

    Args:
        parts: the program of each kind of work and chunk; chunk c is on rank c % len(orders).
        orders: the work of each rank, in order.

    Raises KeyError for a value that is read before it is computed.
    """
    return _Stages(parts, orders, machine).run()


@dataclass
class _Stages:
    parts: Mapping[Place, ChunkProgram]
    orders: Sequence[Sequence[Work]]
    machine: Cluster
    there: dict[tuple[Value, int], float] = field(default_factory=dict[tuple[Value, int], float])
    events: list[Event] = field(default_factory=list[Event])

    def __post_init__(self) -> None:
        self.makers = {name: at for at, part in self.parts.items() for name in part.makes}
        self.taken = {at: compute_seconds(p.func, self.machine) for at, p in self.parts.items()}
        ranks = range(len(self.orders))
        self.link = link_between(ranks, self.machine.links)

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
        memory = [self._memory(rank) for rank in range(len(left))]
        worst = max(memory, key=lambda own: own[1])
        classes = tuple((rank, 1) for rank in range(len(left)))
        return Simulation(max(free), classes, tuple(self.events), worst[0], worst[1])

    def _ready(self, work: Work, rank: int) -> float | None:
        """Returns the time when the inputs of some work are ready, or None if not yet known."""
        names = [n for n in self.parts[work.kind, work.chunk].reads if n in self.makers]
        times = [self.there.get(((n, work.batch), rank)) for n in names]
        return None if None in times else max((t for t in times if t is not None), default=0.0)

    def _do(self, work: Work, rank: int, start: float) -> float:
        at = (work.kind, work.chunk)
        end = start + self.taken[at]
        self.events.append(Event(rank, "compute", _title(work), start, end))
        for name, result in zip(self.parts[at].makes, self.parts[at].func.results, strict=True):
            size = int(str(result.tensor.bytes))
            for other in range(len(self.orders)):
                sent = 0.0 if other == rank else self.link.alpha + self.link.beta * size
                self.there[(name, work.batch), other] = end + sent
        return end

    def _memory(self, rank: int) -> tuple[tuple[tuple[float, int], ...], int]:
        """Returns a rank's bytes over time and the peak: weights, gradients, saved values."""
        order = [w for w in self.orders[rank] if (w.kind, w.chunk) in self.parts]
        works = [(work, self.parts[work.kind, work.chunk]) for work in order]
        ends = {(e.name, e.rank): e.end for e in self.events}
        sizes = {name: size for _, part in works for name, size in _sizes(part)}
        last = {(n, w.batch): number for number, (w, part) in enumerate(works) for n in part.reads}
        read = {name for part in self.parts.values() for name in part.reads}
        weights = sum(sizes[n] for n in {n for n, _ in last} - set(self.makers))
        gradients: dict[str, int] = {}
        held: dict[Value, int] = {}
        found, most = [(0.0, weights)], 0
        for number, (work, part) in enumerate(works):
            values = ((n, work.batch) for n in (*part.reads, *part.makes) if n in self.makers)
            held.update((v, sizes[v[0]]) for v in values if last.get(v, -1) >= number)
            gradients.update((n, sizes[n]) for n in part.makes if n not in read)
            now = weights + sum(held.values()) + sum(gradients.values())
            most = max(most, now + stored_bytes(part.func, self.machine))
            found.append((ends[_title(work), rank], now))
            held = {v: size for v, size in held.items() if last[v] > number}
        return tuple(found), most


def _sizes(part: ChunkProgram) -> Iterator[tuple[str, int]]:
    """Yields the name and bytes of each input and output of a program of the pipeline."""
    nodes = (*part.func.params, *part.func.results)
    for name, node in zip((*part.reads, *part.makes), nodes, strict=True):
        yield name, int(str(node.tensor.bytes))


def _title(work: Work) -> str:
    return f"{work.kind}{work.batch} of chunk {work.chunk}"
