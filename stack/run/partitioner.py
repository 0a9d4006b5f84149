"""Partitioners: what other compilers make of an annotated program, in collectives."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from stack.ir.mesh_ops import sent_bytes
from stack.ir.node import Func

COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "permute")


@dataclass(frozen=True)
class Collective:
    """One that a rank takes part in.

    Attributes:
        op: one of COLLECTIVES.
        ranks: how many meet.
        held: bytes that each of them gives.
    """

    op: str
    ranks: int
    held: int

    @property
    def sent(self) -> int:
        """Bytes that a rank sends, by the algorithms that send least."""
        return sent_bytes(self.op, self.ranks, self.held)

    @property
    def steps(self) -> int:
        """Messages that follow each other in a ring."""
        if self.op == "permute":
            return 1
        return (self.ranks - 1) * (2 if self.op == "all_reduce" else 1)


@dataclass(frozen=True)
class Partition:
    """What a system made of a program.

    Attributes:
        collectives: of one rank; those of loops once.
        seconds: that planning took.
        peak: bytes of arrays that one rank holds at most; None where it is not known.
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
        """Messages that follow each other, where no two collectives overlap."""
        return sum(c.steps for c in self.collectives)

    def counts(self) -> dict[str, int]:
        """How often each collective runs."""
        ops = [c.op for c in self.collectives]
        return {op: ops.count(op) for op in COLLECTIVES if op in ops}

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        found = [[c.op, c.ranks, c.held] for c in self.collectives]
        return {"collectives": found, "seconds": self.seconds, "peak": self.peak}


def partition_of(document: dict[str, Any]) -> Partition:
    """What `as_dict` wrote."""
    found = tuple(Collective(*row) for row in document["collectives"])
    return Partition(found, document["seconds"], document["peak"])


@dataclass(frozen=True)
class Partitioner:
    """A compiler that partitions, for comparison; entry point group `stack.partitioners`.

    Attributes:
        run: takes an annotated function, in a process of its own. Raises StackError where it
            cannot.
        missing: what to install, where it is not there.
        devices: the environment in which it has so many devices.
    """

    name: str
    run: Callable[[Func], Partition]
    missing: Callable[[], str | None]
    devices: Callable[[int], dict[str, str]] = lambda ranks: {}
