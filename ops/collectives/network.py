"""The cost of a schedule: the alpha-beta model, with one or two tiers, and its fit to measurements.

Hockney, "The communication challenge for MPP" (1994): a message of b bytes takes alpha + b * beta.
A step takes as long as its busiest rank. A port sends and receives concurrently, and all messages
of a step share it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stack.errors import UsageError
from stack.ops.collectives.algorithms import algorithms_of, build
from stack.ops.collectives.schedule import Schedule, Step
from stack.sim.machines import Link, fitted

__all__ = ["Link", "Network", "bus_bandwidth", "fitted", "table"]


@dataclass(frozen=True)
class Network:
    """Ranks connected by `inner` links within groups, and by `outer` links between groups.

    Attributes:
        inner: the link between ranks of one group.
        outer: the link between groups; None if all ranks are one group.
        group: number of ranks per group; ranks of a group are consecutive.
        gamma: seconds per byte that a rank adds or copies locally.
    """

    inner: Link
    outer: Link | None = None
    group: int = 0
    gamma: float = 0.0

    def __post_init__(self) -> None:
        if (self.outer is None) != (self.group == 0):
            raise UsageError("a network needs an outer link and a group size, or neither")

    def seconds(self, schedule: Schedule, size: int) -> float:
        """Seconds of a schedule, for an input of `size` bytes on each rank."""
        chunk = -(-size // schedule.chunks)
        return sum(self._step(step, chunk) for step in schedule.steps)

    def _step(self, step: Step, chunk: int) -> float:
        ports: dict[tuple[int, bool, bool], int] = {}  # (rank, sends, beyond its group): bytes
        inside: dict[int, int] = {}
        for t in step:
            size = chunk * len(t.reads)
            if t.is_local or t.adds:
                inside[t.target] = inside.get(t.target, 0) + size
            if t.is_local:
                continue
            beyond = self.group > 0 and t.source // self.group != t.target // self.group
            for port in ((t.source, True, beyond), (t.target, False, beyond)):
                ports[port] = ports.get(port, 0) + size
        times = [self._link(beyond, size) for (_, _, beyond), size in ports.items()]
        return max(times, default=0.0) + self.gamma * max(inside.values(), default=0)

    def _link(self, beyond: bool, size: int) -> float:
        link = self.outer if beyond and self.outer is not None else self.inner
        return link.alpha + link.beta * size

    def predicted(self, collective: str, ranks: int, size: int) -> dict[str, float]:
        """Seconds of every algorithm that supports so many ranks, fastest first."""
        found: dict[str, float] = {}
        for name in algorithms_of(collective):
            options = {"group": self.group} if name == "hierarchical" and self.group else {}
            try:
                schedule = build(collective, name, ranks, **options)
            except UsageError:
                continue  # not for this number of ranks
            found[name] = self.seconds(schedule, size)
        return dict(sorted(found.items(), key=lambda item: item[1]))


def bus_bandwidth(collective: str, ranks: int, size: int, seconds: float) -> float:
    """Minimum bytes per second that each port must have carried, counted as in NCCL's tests."""
    shares: dict[str, float] = {
        "all_reduce": 2 * (ranks - 1) / ranks,
        "reduce_scatter": (ranks - 1) / ranks,
        "all_gather": ranks - 1,
        "all_to_all": (ranks - 1) / ranks,
    }
    return size * shares.get(collective, 1.0) / seconds


def table(network: Network, collective: str, ranks: int, sizes: Sequence[int]) -> str:
    """Predicted microseconds of all algorithms, by size; the fastest of each size is marked."""
    rows = {size: network.predicted(collective, ranks, size) for size in sizes}
    names = list(dict.fromkeys(name for row in rows.values() for name in sorted(row)))
    lines = [f"{'bytes':>12}" + "".join(f"{name:>18}" for name in names)]
    for size, row in rows.items():
        best = next(iter(row))
        cells = [f"{row[n] * 1e6:.1f}{'*' if n == best else ' '}" for n in names]
        lines.append(f"{size:>12}" + "".join(f"{cell:>18}" for cell in cells))
    return "\n".join(lines)
