"""Panels of columns on a CPU: which are packed, in which blocks, and what threads share.

A chunk of work is a panel of columns (of one batch entry) and some tiles of rows. The panel is
packed once, and all tiles of rows read it in order from the second-level cache.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from stack.ir.bounds import LARGEST_LOCAL
from stack.ir.contraction import is_along_depth
from stack.ir.node import Node
from stack.ir.traits import in_windows
from stack.passes.tiling.contraction import Roles, operand_names
from stack.passes.tiling.frame import wide
from stack.target import Cpu, Mma

MOST_BLOCKS = 16  # limit of the search for a number of blocks that divides an axis


def block_size(
    extents: Sequence[int], lanes: int, width: int, cpu: Cpu, depth: int = 1
) -> int | None:
    """Picks how many elements of the first contracted axis of a panel are packed at once, so that
    they fit in the cache; 0 for all, None if no number fits.

    Args:
        extents: extents of the contracted axes.
        lanes: columns of the panel.
        width: bytes of an element.
        cpu: the target, whose cache holds the panel.
        depth: if there is one axis, blocks are multiples of this.
    """
    first = extents[0]
    whole = math.prod(extents) * lanes * width
    part = depth if len(extents) == 1 else 1
    least = -(-whole // int(cpu.matmuls.block_share * cpu.cache_bytes))
    if least == 1:
        return 0
    for count in range(least, min(MOST_BLOCKS * least, first) + 1):
        if first % (count * part) == 0:
            return first // count
    return 0 if whole <= LARGEST_LOCAL else None


def run_of(mma: Mma | None, cpu: Cpu) -> int:
    """Returns how many contracted elements a vector has, in a matmul that sums along the contracted
    axis: those that the instruction `mma` multiplies, or one for each lane without it."""
    return mma.group * mma.lanes if mma else cpu.lanes


@dataclass(frozen=True)
class Panels:
    """The panels of a matmul that is computed in tiles."""

    dot: Node
    roles: Roles  # of its axes
    rows: int  # of a tile
    lanes: int  # columns of a tile, and of a panel
    mma: Mma | None  # the instruction that multiplies a tile; None for multiply-adds
    cpu: Cpu

    @property
    def dtype_bytes(self) -> int:
        """Bytes of a packed element: instructions take operands as they are in memory."""
        operand = self.dot.args[self.roles.right].dtype
        return (operand if self.mma else wide(self.dot.dtype)).bytes

    @property
    def outermost(self) -> int:
        """The number of iterations of the outermost loop over tiles of rows of a panel."""
        return self.roles.sizes[self.roles.outer[0]] if self.roles.outer else self._tiles

    @property
    def _tiles(self) -> int:
        """The number of tiles along the axis of rows."""
        return -(-self.roles.height // self.rows)

    @property
    def height(self) -> int:
        """All rows that a panel is multiplied with. Rows that two tiles compute count twice."""
        return self.roles.count(self.roles.outer) * self._tiles * self.rows

    @cached_property
    def cut(self) -> str:
        """The contracted axis that is cut into blocks if a panel does not fit in the cache.

        It is the longest, so that packed memory has long contiguous runs. With a matrix instruction
        it is the first one of the left operand, which is read in place, since the depth of the
        instruction divides only the last one.
        """
        sizes = self.roles.sizes
        order = sorted(self.roles.contracted, key=operand_names(self.dot, self.roles.left).index)
        return order[0] if self.mma else max(order, key=sizes.__getitem__)

    @cached_property
    def block(self) -> int | None:
        """Elements of a block along the axis `cut`; 0 for all of them, None if no block fits."""
        sizes, names = self.roles.sizes, self.roles.contracted
        extents = [sizes[self.cut], *(sizes[n] for n in names if n != self.cut)]
        depth = self.mma.depth if self.mma else 1
        return block_size(extents, self.lanes, self.dtype_bytes, self.cpu, depth)

    @cached_property
    def is_in_place(self) -> bool:
        """True if tiles of rows read the columns from where they are, so that nothing is packed."""
        right = self.dot.args[self.roles.right]
        if in_windows(right):
            return True  # neighbouring positions are neighbouring lanes
        names, sizes = operand_names(self.dot, self.roles.right), self.roles.sizes
        is_few = self.height <= self.cpu.matmuls.few_rows
        if is_along_depth(self.dot):
            is_whole = sizes[names[-1]] % run_of(self.mma, self.cpu) == 0
            return is_few and is_whole and self.lanes <= self.cpu.lanes
        is_converted = right.dtype.bytes != self.dtype_bytes
        if is_converted or names[-1] != self.roles.lane:
            return False
        if self.mma and self.roles.row:  # each tile of rows groups the neighbours again
            sums = (self.rows + bool(self.mma.offset)) * self.lanes // self.cpu.lanes
            return self.height <= self.rows and sums <= self.cpu.sums
        is_panel = self.roles.width == self.lanes and names[-2] == self.roles.contracted[-1]
        return is_few or (is_panel and len(self.roles.contracted) == 1)

    @cached_property
    def groups(self) -> int:
        """The number of groups of tiles of rows of each panel, so that all threads have work."""
        if self.outermost == 1:
            return 1
        own = self.roles.count((*self.roles.batch, *self.roles.panels))
        chunks = own * -(-self.roles.width // self.lanes)
        groups = 1
        if self.block and not self.is_in_place:
            held = int(self.cpu.matmuls.sums_share * self.cpu.cache_bytes)
            groups = -(-self.height * self.lanes * wide(self.dot.dtype).bytes // held)
        speed = self.cpu.bf16_rate / self.cpu.f32_rate if self.mma else 1.0  # relative to packing
        least = self.cpu.matmuls.split_rows * speed
        while _uneven(chunks * groups, self.cpu) and self.height // (groups + 1) >= least:
            groups += 1
        return min(groups, self.outermost)

    @property
    def fits_rows(self) -> bool:
        """True if rows are still in the cache since the panel before."""
        width = self.dot.args[self.roles.left].dtype.bytes
        size = self.height * self.roles.depth * width
        return size <= self.cpu.matmuls.rows_share * self.cpu.cache_bytes


def _uneven(chunks: int, cpu: Cpu) -> bool:
    """True if `chunks` equal pieces of work do not divide evenly among 2, 4, 8, ... threads, up to
    the number of cores, so that some thread would idle.
    """
    threads = (1 << i for i in range(1, cpu.cores.bit_length()))
    most = chunks * (1 + cpu.matmuls.imbalance)
    return any(-(-chunks // t) * t > most for t in threads)
