"""Tile sizes of matmuls on Hopper, and how many programs share a tile's sum."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

BLOCK = 128  # columns of a part, and bytes of k per tile
HALF = 64  # rows per group of four warps
SHARED = 232448 - 1024  # bytes available to a program, without barriers
LAUNCH = 64 << 10  # bytes that a multiprocessor could load from L2 during a kernel launch


@dataclass(frozen=True)
class Config:
    """Tiles of 128 rows x `columns`, in bands of `band` tiles; `splits` programs share a sum."""

    columns: int
    splits: int = 1
    band: int = 8


CONFIGS = [Config(columns, splits) for splits in range(1, 9) for columns in (256, 128, 64)]


def stored_for(columns: int, size: int) -> int:
    """Columns of results of `size` bytes that are stored at a time: 256 bytes."""
    return min(columns, 2 * BLOCK // size)


def stages_for(columns: int, size: int) -> int:
    """The number of stages that fit in shared memory, next to results of `size` bytes."""
    results = 2 * HALF * stored_for(columns, size) * size
    return (SHARED - results) // ((2 * HALF + columns) * BLOCK)


@cache
def config_for(
    rows: int, columns: int, width: int, size: int, processors: int, groups: int = 1
) -> Config:
    """Returns the configuration whose busiest multiprocessor loads the fewest bytes from L2.

    Memory, for weights and results, has half the rate of L2. `width` bytes along k are summed to a
    result of `size` bytes; each group has an equal part of `rows`.
    """
    each = -(-rows // groups)
    down, steps = groups * -(-each // (2 * HALF)), -(-width // BLOCK)
    high = min(each, 2 * HALF)

    def most(c: Config) -> float:
        units = down * -(-columns // c.columns) * c.splits
        tile = -(-steps // c.splits) * (high + c.columns) * BLOCK
        tile += 2 * high * c.columns * (4 if c.splits > 1 else size)
        own = -(-units // processors) * tile
        if c.splits > 1:
            own += LAUNCH + 2 * rows * columns * (4 * c.splits + size) // processors
        return max(own, 2 * groups * columns * width / processors)

    return min((c for c in CONFIGS if groups == 1 or c.splits == 1), key=most)
