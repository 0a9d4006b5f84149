"""How weights of 4 bits are stored, and their product with few rows of x cut up for a GPU."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

CHUNK = 128  # of k
TABLE = 256 * 32 * 4  # bytes of tables, one for each lane
ROOM = 227 << 10  # bytes of shared memory that a block may have on Hopper
# (tiles, team, teams) of blocks that have a processor to themselves, the best first
SHAPES = (2, 2, 8), (2, 4, 4), (4, 2, 4), (2, 2, 4)
PARTS = 1, 2  # of 4 blocks to a cluster not all processors can have one at a time
STAGES = 3  # more are slower
MEETING = 48 << 10  # bytes that a processor could read while blocks of a cluster meet
REGISTERS = 1024  # half of a processor's, for a lane of each warp


@dataclass(frozen=True)
class Form:
    """How weights are stored.

    Attributes:
        group: weights that share a scale: 32, 64, or a multiple of 128.
        is_near: whether 4 bytes hold 8 neighbours, the high halves those 4 on, or, of a `table`,
            each byte two neighbours, the first in the high half. Else high halves are half a group
            on, for groups of 128 at least.
        beside: what each scale has beside it: "zeros", a zero point plus the number that code 0
            comes out as; "minima", what is subtracted from scale times code, both float16; or "".
        table: the numbers that codes stand for; () for the codes themselves, less 8 where nothing
            else is subtracted.
    """

    group: int
    is_near: bool = False
    beside: str = ""
    table: tuple[float, ...] = ()


@dataclass(frozen=True)
class Config:
    """How a product is cut up.

    Attributes:
        tiles: of 16 rows of weights that a warp has.
        team: warps that share x.
        teams: of a block; they share a sum.
        parts: blocks of a cluster that share a sum.
        stages: chunks under way for each team.
        blocks: that a processor is to hold at a time.
    """

    tiles: int
    team: int
    teams: int
    parts: int
    stages: int
    blocks: int = 1

    @property
    def tall(self) -> int:
        """Rows of weights of a block."""
        return 16 * self.tiles * self.team

    def stage(self, held: int, form: Form) -> int:
        """Bytes of all teams' chunks, with so many rows of x."""
        return self.teams * (self.tall * 64 + held * (320 if form.is_near else 272))

    def shared(self, held: int, form: Form) -> int:
        """Bytes of shared memory."""
        ring = self.stages * self.stage(held, form) + (TABLE if form.table else 0)
        return max(ring, self.teams * -(-held // 8) * 8 * self.tall * 4)


def held_of(rows: int) -> int:
    """Rows of x in shared memory: a kernel for each power of two."""
    return 1 << (rows - 1).bit_length()


@cache
def config_for(rows: int, columns: int, depth: int, form: Form, processors: int) -> Config:
    """The cut whose busiest processor has the fewest bytes to read; a cluster's meeting is some."""

    def bytes_of(config: Config) -> int:
        blocks = -(-columns // config.tall) * config.parts
        turns = -(-depth // (CHUNK * config.parts * config.teams))
        meeting = MEETING if config.parts > 1 else 0
        return -(-blocks // processors) * turns * config.stage(held_of(rows), form) + meeting

    return min(_fitting(held_of(rows), form), key=bytes_of)


def _fitting(held: int, form: Form) -> list[Config]:
    """Cuts with as many stages as there is room for."""
    found: list[Config] = []
    for shape in SHAPES:
        for parts in PARTS:
            one = Config(*shape, parts, 1)
            stages = (ROOM - (TABLE if form.table else 0)) // one.stage(held, form)
            # sums of tiles, and x beside the four words of a chunk
            registers = 4 * (one.tiles + 4) * -(-held // 8) * one.team * one.teams
            if stages > 1 and registers <= REGISTERS:
                found.append(replace(one, stages=min(stages, STAGES)))
    return found
