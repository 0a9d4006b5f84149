"""Minimum cut of a network: Dinic's algorithm (Dinitz 1970) for the maximum flow.

The edges that a maximum flow saturates contain a minimum cut (Ford and Fulkerson 1956).
"""

from __future__ import annotations

from collections import deque

INFINITE = 1 << 60  # more than the bytes of any program
SOURCE, SINK = 0, 1  # nodes of a network


class Network:
    """Nodes by number, with SOURCE and SINK, and edges of integer capacities."""

    def __init__(self, size: int) -> None:
        self.edges: list[list[int]] = [[] for _ in range(size)]  # numbers of outgoing edges
        self.ends: list[int] = []
        self.room: list[int] = []  # residual capacity; edge `e ^ 1` is the reverse edge

    def add(self, start: int, end: int, capacity: int) -> None:
        """Adds an edge of this capacity from node `start` to node `end`, and its reverse edge of
        capacity 0, which a residual network needs."""
        for a, b, room in ((start, end, capacity), (end, start, 0)):
            self.edges[a].append(len(self.ends))
            self.ends.append(b)
            self.room.append(room)

    def source_side(self) -> set[int]:
        """Returns the nodes on the source's side of a minimum cut, the smallest such set.

        Raises ValueError if every cut contains an edge of infinite capacity.
        """
        total = 0
        while (levels := self._levels())[SINK] >= 0:
            total += self._fill(levels)
            if total >= INFINITE:
                raise ValueError("no cut has a price")
        return {node for node, level in enumerate(levels) if level >= 0}

    def _levels(self) -> list[int]:
        """Returns each node's distance from the source in the residual network, or -1."""
        levels = [-1] * len(self.edges)
        levels[SOURCE] = 0
        pending = deque([SOURCE])
        while pending:
            node = pending.popleft()
            for edge in self.edges[node]:
                end = self.ends[edge]
                if self.room[edge] and levels[end] < 0:
                    levels[end] = levels[node] + 1
                    pending.append(end)
        return levels

    def _fill(self, levels: list[int]) -> int:
        """Sends a blocking flow along shortest paths; returns its amount."""
        total = 0
        tried = [0] * len(self.edges)
        path: list[int] = []
        node = SOURCE
        while True:
            if node == SINK:
                amount = min(self.room[e] for e in path)
                for edge in path:
                    self.room[edge] -= amount
                    self.room[edge ^ 1] += amount
                total += amount
                full = next(i for i, e in enumerate(path) if not self.room[e])
                node = self.ends[path[full] ^ 1]
                del path[full:]
                continue
            out = self.edges[node]
            while tried[node] < len(out):
                edge = out[tried[node]]
                if self.room[edge] and levels[self.ends[edge]] == levels[node] + 1:
                    path.append(edge)
                    node = self.ends[edge]
                    break
                tried[node] += 1
            else:
                if not path:
                    return total
                levels[node] = -1
                node = self.ends[path.pop() ^ 1]
