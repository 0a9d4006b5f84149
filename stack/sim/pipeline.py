"""Pipeline-parallel schedules: the order of work on each rank.

Ranks are simulated greedily under a policy: each picks its preferred item of ready work. GPipe
(Huang et al., 2019) runs all microbatches forward, then all backward. 1F1B (Narayanan et al.,
"PipeDream", 2019) runs backward as early as possible and keeps as many microbatches in flight as
there are remaining stages. Interleaved (Narayanan et al., "Megatron-LM", 2021) gives each rank
several chunks. Zero-bubble (Qi et al., 2023) computes weight gradients in otherwise idle time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from stack.errors import UsageError
from stack.ir.func import Func

KINDS = ("gpipe", "1f1b", "interleaved", "zero_bubble")


class Work(NamedTuple):
    """The work of one chunk of the model on one microbatch. `kind` is F (forward), B (gradients of
    activations) or W (gradients of weights).
    """

    kind: str
    chunk: int
    batch: int


@dataclass(frozen=True)
class ChunkProgram:
    """One of the programs of a chunk.

    Attributes:
        reads: for each parameter of `func` the name of its value: a parameter of the whole program,
            or a result of another part.
        makes: names of its results.
    """

    func: Func
    reads: tuple[str, ...]
    makes: tuple[str, ...]


class ScheduledWork(NamedTuple):
    """A piece of work with its start and end time."""

    work: Work
    start: float
    end: float


@dataclass(frozen=True)
class Timetable:
    """A schedule with its times.

    Attributes:
        ranks: the work of each rank, in order.
        chunks: number of pieces of the model; chunk c is on rank c % len(ranks).
    """

    kind: str
    ranks: tuple[tuple[ScheduledWork, ...], ...]
    chunks: int

    @property
    def seconds(self) -> float:
        """The time at which the last rank finishes."""
        return max(p.end for rank in self.ranks for p in rank)

    @property
    def bubble(self) -> float:
        """The fraction of time in which ranks are idle."""
        busy = sum(p.end - p.start for rank in self.ranks for p in rank)
        return 1 - busy / (self.seconds * len(self.ranks))


def pipeline(
    kind: str,
    ranks: int,
    batches: int,
    times: Mapping[str, float] | None = None,
    chunks: int = 0,
    send: float = 0.0,
) -> Timetable:
    """Returns the timetable of one training step of pipeline parallelism, with the schedule `kind`
    and `batches` microbatches.

    Args:
        times: seconds of F, B and W of a chunk; by default B and W take as long as F each.
        chunks: number of pieces of the model; by default one for each rank, two for interleaved.
        send: seconds of a message from one chunk to the next.

    Raises UsageError for an unknown kind, and if the chunks do not divide evenly among ranks.
    """
    if kind not in KINDS:
        raise UsageError(f"schedule {kind!r} is not one of {', '.join(KINDS)}")
    chunks = chunks or ranks * (2 if kind == "interleaved" else 1)
    if ranks < 1 or batches < 1 or chunks % ranks:
        raise UsageError(f"{chunks} chunks and {batches} microbatches on {ranks} ranks")
    return _Greedy(kind, ranks, batches, chunks, times or dict.fromkeys("FBW", 1.0), send).run()


class _Greedy:
    """Builds a timetable of pipeline parallelism: whenever a rank is free, gives it the next work
    that is ready.
    """

    def __init__(
        self,
        kind: str,
        ranks: int,
        batches: int,
        chunks: int,
        times: Mapping[str, float],
        send: float,
    ) -> None:
        self.kind, self.ranks, self.chunks, self.send = kind, ranks, chunks, send
        self.times = dict(times)
        parts = ("F", "B", "W") if kind == "zero_bubble" else ("F", "B")
        if "W" not in parts:
            self.times["B"] += self.times.get("W", 0.0)
        self.todo = [
            {Work(k, c, b) for k in parts for c in range(r, chunks, ranks) for b in range(batches)}
            for r in range(ranks)
        ]
        self.ends: dict[Work, float] = {}
        self.found: list[list[ScheduledWork]] = [[] for _ in range(ranks)]

    def run(self) -> Timetable:
        free = [0.0] * self.ranks
        while any(self.todo):
            offers = [found for r in range(self.ranks) if (found := self._next(r, free[r]))]
            start, _, rank, work = min(offers)
            end = start + self.times[work.kind]
            self.found[rank].append(ScheduledWork(work, start, end))
            self.todo[rank].remove(work)
            self.ends[work] = free[rank] = end
        return Timetable(self.kind, tuple(map(tuple, self.found)), self.chunks)

    def _next(self, rank: int, free: float) -> tuple[float, tuple[int, ...], int, Work] | None:
        """The next work of a rank with its start time: the earliest, then the most preferred."""
        room = self._limit(rank) - self._held(rank)
        works = [w for w in self.todo[rank] if w.kind != "F" or room > 0]
        if self.kind != "zero_bubble":  # forward while there is room, then backward; each in order
            works = [min(works, key=self._like)] if works else []
        ready = [
            (max(free, at), self._like(work), rank, work)
            for work in works
            if (at := self._ready(work)) is not None
        ]
        return min(ready, default=None)

    def _ready(self, work: Work) -> float | None:
        """Returns the time at which the inputs of a piece of work have arrived on its rank; None if
        a work that computes them is not scheduled yet.
        """
        kind, chunk, batch = work
        needs = {
            "F": [Work("F", chunk - 1, batch)] if chunk else [],
            "B": [Work("F", chunk, batch)],
            "W": [Work("B", chunk, batch)],
        }[kind]
        if kind == "B" and chunk + 1 < self.chunks:
            needs.append(Work("B", chunk + 1, batch))
        if any(need not in self.ends for need in needs):
            return None
        return max((self.ends[n] + self.send * (n.chunk != chunk) for n in needs), default=0.0)

    def _like(self, work: Work) -> tuple[int, ...]:
        """The sort key among pieces of work of one rank, the smallest first: by kind, then by the
        order in which the schedule runs chunks and microbatches.
        """
        order = "BFW" if self.kind == "zero_bubble" else "FBW"
        turn = work.batch // self.ranks if self.kind == "interleaved" else 0
        chunk = self.chunks - work.chunk if work.kind == "B" else work.chunk
        return order.index(work.kind), turn, chunk, work.batch

    def _limit(self, rank: int) -> int:
        """The number of microbatches in flight on a rank (each counted once for every chunk there)
        at which no further forward work starts; no limit for gpipe.
        """
        if self.kind == "gpipe":
            return 1 << 30
        if self.kind == "interleaved":
            return 2 * (self.ranks - rank - 1) + (self.chunks // self.ranks - 1) * self.ranks + 1
        return self.ranks - rank

    def _held(self, rank: int) -> int:
        kinds = [placed.work.kind for placed in self.found[rank]]
        return kinds.count("F") - kinds.count("B")


def order_of(schedule: Timetable) -> list[list[Work]]:
    """Returns the order of work on each rank. If the timetable has no separate W (gradients of
    weights), lists it right after its B.
    """
    parts = any(p.work.kind == "W" for rank in schedule.ranks for p in rank)
    found: list[list[Work]] = []
    for rank in schedule.ranks:
        own: list[Work] = []
        for placed in rank:
            own.append(placed.work)
            if placed.work.kind == "B" and not parts:
                own.append(Work("W", placed.work.chunk, placed.work.batch))
        found.append(own)
    return found


def formula(kind: str, ranks: int, batches: int, chunks: int = 0) -> float:
    """The bubble by the textbook formula, if B and W take as long as F each and messages take no
    time.
    """
    turns = (chunks or ranks * (2 if kind == "interleaved" else 1)) // ranks
    waits = (ranks - 1) / turns
    if kind == "zero_bubble":
        waits /= 3  # (p - 1) (F + B - W), of which W fills one
    return waits / (batches + waits)


__all__: Sequence[str] = (
    "KINDS",
    "ChunkProgram",
    "ScheduledWork",
    "Timetable",
    "Work",
    "formula",
    "order_of",
    "pipeline",
)
