"""Collectives in flight: started, and not known to be complete.

A process group computes its collectives in the order in which they start. So when a rank has the
result of one, all earlier ones of the group are complete, and their operands are free.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field

from stack.ir.node import Node
from stack.mesh.ops import is_meeting

MESSAGES = "halo", "permute"  # point to point, in the group of all ranks


def channel_of(node: Node) -> Hashable:
    """Returns a key of the process group of a collective."""
    return MESSAGES if node.op in MESSAGES else str(node.attrs["over"])


@dataclass
class Flights:
    """The collectives in flight, by process group, in the order in which they started."""

    started: dict[Hashable, list[Node]] = field(default_factory=dict[Hashable, list[Node]])

    def start(self, node: Node) -> None:
        """Adds a collective."""
        self.started.setdefault(channel_of(node), []).append(node)

    def land(self, node: Node) -> list[Node]:
        """Removes a collective whose result is there, and those before it in its group.

        Returns them. Empty for a value that is not in flight.
        """
        flying = self.started.get(channel_of(node), []) if is_meeting(node) else []
        if node not in flying:
            return []
        count = flying.index(node) + 1
        landed, flying[:] = flying[:count], flying[count:]
        return landed

    def operands(self) -> Iterator[Node]:
        """Yields the values that collectives in flight read; an all-reduce works in place."""
        for flying in self.started.values():
            yield from (a for n in flying if n.op != "all_reduce" for a in n.args)
