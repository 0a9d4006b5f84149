"""Tile sizes of a hand-written matmul kernel."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class TileConfig:
    """Tiles of `rows` x `columns`, with `depth` of k at a time, in bands of `group` tiles.

    Tiles of a band share data in the L2 cache. `stages`: tiles in flight.
    """

    rows: int
    columns: int
    depth: int
    warps: int
    stages: int
    group: int = 8
