"""How a product is cut up for a kernel by hand."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class TileConfig:
    """Tiles of `rows` x `columns`, `depth` of k at a time, in bands of `group` tiles.

    Tiles of a band share what they read in the L2 cache. `stages` of tiles are under way.
    """

    rows: int
    columns: int
    depth: int
    warps: int
    stages: int
    group: int = 8
