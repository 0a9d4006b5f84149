"""The meaning of collectives, and schedules of messages that compute them.

Each rank has a buffer of equal slots. Its input is in some of them, chunk by chunk, and after the
last step its result is. A step is a set of concurrent transfers: all of them read the state before
the step. This is all there is to a schedule, so that one small player can prove it, compute with
it, price it and run it on real processes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import zip_longest
from typing import Any

from stack.errors import UsageError

Contribution = tuple[int, int]  # a rank, and the chunk of its input


@dataclass(frozen=True)
class Transfer:
    """One message: slots of one rank are copied to slots of another.

    Attributes:
        source, target: ranks; equal for local work, which uses no network.
        reads, writes: slots of their buffers, pairwise.
        adds: True to add to the target slots, False to replace them.
    """

    source: int
    target: int
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    adds: bool = False

    @property
    def is_local(self) -> bool:
        return self.source == self.target

    def __str__(self) -> str:
        to = "" if self.reads == self.writes else f" to {_slots(self.writes)}"
        return f"{self.source}->{self.target} {'+' if self.adds else ''}{_slots(self.reads)}{to}"


Step = tuple[Transfer, ...]


@dataclass(frozen=True)
class Schedule:
    """A collective as steps of messages.

    Attributes:
        collective: a name of `MEANINGS`.
        algorithm: name of the algorithm.
        ranks: number of ranks.
        slots: number of slots in each rank's buffer.
        steps: executed in order.
        inputs: for each rank, the slots of its input, chunk by chunk.
        results: for each rank, the slots of its result.
        root: the root of a broadcast.
        order: for a permute, the rank that each rank sends to.
    """

    collective: str
    algorithm: str
    ranks: int
    slots: int
    steps: tuple[Step, ...]
    inputs: tuple[tuple[int, ...], ...]
    results: tuple[tuple[int, ...], ...]
    root: int = 0
    order: tuple[int, ...] = ()

    @property
    def chunks(self) -> int:
        """The number of chunks of a rank's input."""
        return len(self.inputs[0])

    @cached_property
    def sent(self) -> tuple[int, ...]:
        """Slots that each rank sends to others, over all steps."""
        found = [0] * self.ranks
        for transfer in (t for step in self.steps for t in step if not t.is_local):
            found[transfer.source] += len(transfer.reads)
        return tuple(found)

    def sent_bytes(self, size: int) -> int:
        """Maximum number of bytes that a rank sends, for an input of `size` bytes."""
        return max(self.sent) * -(-size // self.chunks)

    def __str__(self) -> str:
        head = f"{self.collective} {self.algorithm}: {self.ranks} ranks, {self.slots} slots"
        lines = [
            f"  {number:>3}: {', '.join(map(str, step))}"
            for number, step in enumerate(self.steps, start=1)
        ]
        return "\n".join([head, *lines])

    def prove(self) -> Schedule:
        """Returns this schedule, if every rank gets what the collective means.

        Chunks are tracked as sets of contributions, so the proof holds for all values. Raises
        UsageError with the step, rank and slot that are wrong.
        """
        state: list[list[Any]] = [[None] * self.slots for _ in range(self.ranks)]
        for rank, slots in enumerate(self.inputs):
            for chunk, slot in enumerate(slots):
                state[rank][slot] = frozenset({(rank, chunk)})
        play(self, state, _union)
        for rank, slots in enumerate(self.results):
            for index, slot in enumerate(slots):
                wanted = MEANINGS[self.collective](self, rank, index)
                if state[rank][slot] != wanted:
                    raise UsageError(
                        f"{self.collective} {self.algorithm}: chunk {index} of rank {rank} is"
                        f" {_told(state[rank][slot])}, not {_told(wanted)}"
                    )
        return self


def play(
    schedule: Schedule, state: list[list[Any]], add: Callable[[Any, Any], Any]
) -> list[list[Any]]:
    """Execute all steps on `state[rank][slot]`, in place.

    Raises UsageError if a step reads an empty slot (None), or writes one twice.
    """
    for number, step in enumerate(schedule.steps, start=1):
        old = [list(slots) for slots in state]
        written: dict[tuple[int, int], bool] = {}
        for transfer in step:
            at = f"{schedule.algorithm}, step {number}, {transfer}"
            for read, write in zip(transfer.reads, transfer.writes, strict=True):
                value, place = old[transfer.source][read], (transfer.target, write)
                if value is None:
                    raise UsageError(f"{at}: slot {read} of rank {transfer.source} is empty")
                if place in written and not (transfer.adds and written[place]):
                    raise UsageError(f"{at}: slot {write} is written twice in one step")
                written[place] = transfer.adds
                if transfer.adds:
                    present = state[transfer.target][write]
                    if present is None:
                        raise UsageError(f"{at}: adds to slot {write}, which is empty")
                    value = add(present, value)
                state[transfer.target][write] = value
    return state


# ---- the meaning of collectives: the contributions to a chunk of a rank's result


def _all_reduce(s: Schedule, rank: int, index: int) -> frozenset[Contribution]:
    return frozenset((source, index) for source in range(s.ranks))


def _reduce_scatter(s: Schedule, rank: int, index: int) -> frozenset[Contribution]:
    part = s.chunks // s.ranks
    return frozenset((source, rank * part + index) for source in range(s.ranks))


def _all_gather(s: Schedule, rank: int, index: int) -> frozenset[Contribution]:
    return frozenset({divmod(index, s.chunks)})


def _all_to_all(s: Schedule, rank: int, index: int) -> frozenset[Contribution]:
    part = s.chunks // s.ranks
    source, place = divmod(index, part)
    return frozenset({(source, rank * part + place)})


def _broadcast(s: Schedule, rank: int, index: int) -> frozenset[Contribution]:
    return frozenset({(s.root, index)})


def _permute(s: Schedule, rank: int, index: int) -> frozenset[Contribution]:
    return frozenset({(s.order.index(rank), index)})


MEANINGS: dict[str, Callable[[Schedule, int, int], frozenset[Contribution]]] = {
    "all_reduce": _all_reduce,
    "reduce_scatter": _reduce_scatter,
    "all_gather": _all_gather,
    "all_to_all": _all_to_all,
    "broadcast": _broadcast,
    "permute": _permute,
}


# ---- schedules built from schedules


def embedded(
    schedule: Schedule, ranks: Sequence[int], slots: Sequence[Sequence[int]]
) -> tuple[Step, ...]:
    """Returns the steps of a schedule for a subset of the ranks of a larger one: rank i becomes
    `ranks[i]`, and slot i becomes the slots `slots[i]`."""

    def spread(found: Sequence[int]) -> tuple[int, ...]:
        return tuple(s for slot in found for s in slots[slot])

    return tuple(
        tuple(
            Transfer(ranks[t.source], ranks[t.target], spread(t.reads), spread(t.writes), t.adds)
            for t in step
        )
        for step in schedule.steps
    )


def together(parts: Sequence[Sequence[Step]]) -> tuple[Step, ...]:
    """Merges independent sequences of steps: step i of the result has the messages of step i of
    each, which run concurrently."""
    return tuple(
        tuple(t for step in steps for t in step) for steps in zip_longest(*parts, fillvalue=())
    )


def _union(a: frozenset[Contribution], b: frozenset[Contribution]) -> frozenset[Contribution]:
    if a & b:
        raise UsageError(f"{_told(a & b)} is added twice")
    return a | b


def _told(found: frozenset[Contribution] | None) -> str:
    if found is None:
        return "nothing"
    return " + ".join(f"chunk {chunk} of rank {rank}" for rank, chunk in sorted(found))


def _slots(slots: Sequence[int]) -> str:
    """Formats slots as ranges: `[0-3,6]`."""
    runs: list[list[int]] = []
    for slot in slots:
        if runs and slot == runs[-1][-1] + 1:
            runs[-1] = [runs[-1][0], slot]
        else:
            runs.append([slot])
    return "[" + ",".join("-".join(map(str, run)) for run in runs) + "]"
