"""Storage forms of 4-bit weights, and how their matmul with few rows of x is split for a GPU."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

CHUNK = 128  # elements of k
TABLE = 256 * 32 * 4  # bytes of tables, one per lane
ROOM = 227 << 10  # bytes of shared memory available to a block on Hopper
# (tiles, team, teams) of blocks with a multiprocessor to themselves, best first
SHAPES = (2, 2, 8), (2, 4, 4), (4, 2, 4), (2, 2, 4)
PARTS = 1, 2  # with 4 blocks per cluster, some multiprocessors would stay idle
STAGES = 3  # more are slower
MEETING = 48 << 10  # bytes that a multiprocessor could read while a cluster synchronizes
REGISTERS = 1024  # half of a multiprocessor's registers, for one lane of each warp


@dataclass(frozen=True)
class Form:
    """The storage format of weights.

    Attributes:
        group: weights that share a scale: 32, 64, or a multiple of 128.
        is_near: True if 4 bytes contain 8 neighbours: low halves the first 4, high halves the next
            4. With a `table`, each byte contains two neighbours, the first in the high half. If
            False, high halves are half a group further on, for groups of at least 128.
        beside: stored with each scale, in float16: "zeros", a zero point plus the unpacked number
            of code 0; "minima", subtracted from scale times code; or "" for nothing.
        table: the numbers that codes represent; () for the codes themselves, minus 8 if there are
            no zero points or minima.
    """

    group: int
    is_near: bool = False
    beside: str = ""
    table: tuple[float, ...] = ()


@dataclass(frozen=True)
class Config:
    """The split of a matmul.

    Attributes:
        tiles: tiles of 16 rows of weights per warp.
        team: warps that share x.
        teams: per block; they share a sum.
        parts: blocks per cluster, which share a sum.
        stages: chunks in flight per team.
        blocks: blocks per multiprocessor at a time.
    """

    tiles: int
    team: int
    teams: int
    parts: int
    stages: int
    blocks: int = 1

    @property
    def tall(self) -> int:
        """Rows of weights per block."""
        return 16 * self.tiles * self.team

    def stage(self, held: int, form: Form) -> int:
        """Bytes of one stage of all teams, with `held` rows of x."""
        return self.teams * (self.tall * 64 + held * (320 if form.is_near else 272))

    def shared(self, held: int, form: Form) -> int:
        """Bytes of shared memory per block."""
        ring = self.stages * self.stage(held, form) + (TABLE if form.table else 0)
        return max(ring, self.teams * -(-held // 8) * 8 * self.tall * 4)


def held_of(rows: int) -> int:
    """Returns `rows`, a number of rows of x, rounded up to a power of two: the kernel for that many
    has room for them in shared memory."""
    return 1 << (rows - 1).bit_length()


@cache
def config_for(rows: int, columns: int, depth: int, form: Form, processors: int) -> Config:
    """Returns the split with the least work, in bytes, on the busiest multiprocessor.

    Synchronizing a cluster counts as some bytes.
    """

    def bytes_of(config: Config) -> int:
        blocks = -(-columns // config.tall) * config.parts
        turns = -(-depth // (CHUNK * config.parts * config.teams))
        meeting = MEETING if config.parts > 1 else 0
        return -(-blocks // processors) * turns * config.stage(held_of(rows), form) + meeting

    return min(_fitting(held_of(rows), form), key=bytes_of)


def _fitting(held: int, form: Form) -> list[Config]:
    """Returns the splits that fit, with as many stages as shared memory allows."""
    found: list[Config] = []
    for shape in SHAPES:
        for parts in PARTS:
            one = Config(*shape, parts, 1)
            stages = (ROOM - (TABLE if form.table else 0)) // one.stage(held, form)
            # accumulators of tiles, and x for the four words of a chunk
            registers = 4 * (one.tiles + 4) * -(-held // 8) * one.team * one.teams
            if stages > 1 and registers <= REGISTERS:
                found.append(replace(one, stages=min(stages, STAGES)))
    return found
