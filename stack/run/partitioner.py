"""Other compilers' partitioners: the collectives that they generate for an annotated program."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from stack.ir.func import Func
from stack.mesh.ops import sent_bytes

COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "permute")


@dataclass(frozen=True)
class Collective:
    """One collective operation of a partitioned program, as one rank takes part in it.

    Attributes:
        op: one of COLLECTIVES.
        ranks: number of ranks in its group.
        held: bytes of each rank's input.
    """

    op: str
    ranks: int
    held: int

    @property
    def sent(self) -> int:
        """Bytes that a rank sends, with the algorithms that send least."""
        return sent_bytes(self.op, self.ranks, self.held)

    @property
    def steps(self) -> int:
        """Number of messages that a rank sends one after the other, if the collective runs as a
        ring.
        """
        if self.op == "permute":
            return 1
        return (self.ranks - 1) * (2 if self.op == "all_reduce" else 1)


@dataclass(frozen=True)
class Partition:
    """The program of one rank, as a partitioner made it: its collectives and memory.

    Attributes:
        collectives: of one rank; those of loops counted once.
        seconds: planning time.
        peak: maximum bytes of arrays on one rank; None if unknown.
    """

    collectives: tuple[Collective, ...]
    seconds: float
    peak: int | None = None

    @property
    def sent(self) -> int:
        """Bytes that a rank sends."""
        return sum(c.sent for c in self.collectives)

    @property
    def steps(self) -> int:
        """Number of messages that a rank sends one after the other, if no collectives overlap."""
        return sum(c.steps for c in self.collectives)

    def counts(self) -> dict[str, int]:
        """Number of runs of each collective."""
        ops = [c.op for c in self.collectives]
        return {op: ops.count(op) for op in COLLECTIVES if op in ops}

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        found = [[c.op, c.ranks, c.held] for c in self.collectives]
        return {"collectives": found, "seconds": self.seconds, "peak": self.peak}


def partition_of(document: dict[str, Any]) -> Partition:
    """Restores a Partition from `as_dict`."""
    found = tuple(Collective(*row) for row in document["collectives"])
    return Partition(found, document["seconds"], document["peak"])


@dataclass(frozen=True)
class Partitioner:
    """Another compiler that partitions programs over ranks, for comparison with ours; entry point
    group `stack.partitioners`.

    Attributes:
        run: partitions an annotated function, in a process of its own. Raises StackError if it
            cannot.
        missing: returns what to install, or None.
        devices: the environment variables that give it this many devices.
    """

    name: str
    run: Callable[[Func], Partition]
    missing: Callable[[], str | None]
    devices: Callable[[int], dict[str, str]] = lambda ranks: {}
