"""Packs a panel of an operand into local memory: lanes last, contracted axes before them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from stack.ir.bounds import LARGEST_LOCAL
from stack.ir.builder import Builder, constant
from stack.ir.node import Node
from stack.ir.types import I64, DType
from stack.passes.cpu_loops.block_slices import part
from stack.passes.tiling.frame import static
from stack.target import Cpu, Mma

PAIR = "pair"  # the axis of neighbours that are packed together
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
class Panel:
    """An operand of a dot that is copied to contiguous memory, `[*contracted, lane]`.

    With `group` > 1, as matrix instructions need it, `[..., last contracted / group, lane, group]`.

    Attributes:
        load: the block of the operand that the dot reads.
        names: its axes.
        contracted: the contracted axes, outermost first.
        cut: the contracted axis that is split into blocks.
        lane: the axis of columns.
        dtype: element type of the packed panel.
        group: elements along the last contracted axis that are contiguous within a lane.
    """

    load: Node
    names: tuple[str, ...]
    contracted: tuple[str, ...]
    cut: str
    lane: str
    dtype: DType
    group: int = 1

    def size(self, name: str) -> int:
        """Returns the extent of the axis `name` of the operand."""
        size = self.load.shape[self.names.index(name)]
        assert isinstance(size, int)
        return size

    @property
    def lanes(self) -> int:
        return self.size(self.lane)

    @property
    def depth(self) -> int:
        """The number of elements along all contracted axes."""
        return math.prod(map(self.size, self.contracted))

    @property
    def lanes_last(self) -> bool:
        """True if lanes are contiguous in memory."""
        return self.names[-1] == self.lane

    def shape(self, block: int = 0) -> tuple[int, ...]:
        """Returns the shape of the packed panel; if `block` is not 0, with so many elements of the
        axis `cut` only.
        """
        sizes = {n: self.size(n) for n in self.contracted}
        if block:
            sizes[self.cut] = block
        *outer, last = sizes.values()
        if self.group == 1:
            return (*outer, last, self.lanes)
        return (*outer, last // self.group, self.lanes, self.group)

    def pack(
        self,
        b: Builder,
        memory: Node,
        start: Node | None = None,
        block: int = 0,
        place: Sequence[Node] = (),
    ) -> Node:
        """Stores the panel in memory in packed order, and returns the memory after that. With
        `block`, only `block` elements of the axis `cut` are stored, from index `start` on.

        This is one store of a block; the printer chooses the loops and the transposes.
        `place`: index of the panel, if memory has several.
        """
        value = self.load
        if start is not None:
            value = part(b, value, self.names.index(self.cut), start, block)
        kept = [n for n in self.names if n in self.contracted or n == self.lane]
        flat = [value.shape[self.names.index(n)] for n in kept]
        order = [*self.contracted, self.lane]
        if self.group > 1:
            at = kept.index(self.contracted[-1])
            flat[at : at + 1] = [static(flat[at]) // self.group, self.group]
            kept.insert(at + 1, PAIR)
            order.append(PAIR)
        if tuple(flat) != value.shape:
            value = b.reshape(value, type=value.tensor.with_shape(tuple(flat)))
        if value.dtype != self.dtype:
            value = b.cast(value, type=value.tensor.with_dtype(self.dtype))
        perm = tuple(kept.index(n) for n in order)
        if perm != tuple(range(len(perm))):
            value = b.transpose(value, perm=perm)
        corner = [constant(0, I64)] * (memory.tensor.rank - len(place))
        return b.store(memory, value, *place, *corner)


@dataclass(frozen=True)
class ContractionOrder:
    """The loop order of contracted axes, and the size of packed blocks.

    Attributes:
        order: the axes, without those of one element.
        cut: the axis that is split into packed blocks.
        block: elements of a block; 0 for all, None if none fits.
    """

    order: tuple[str, ...]
    cut: str
    block: int | None


def walk_of(
    contracted: Sequence[str],
    left: Sequence[str],
    sizes: Mapping[str, int],
    panel: tuple[int, int],
    cpu: Cpu,
    mma: Mma | None,
) -> ContractionOrder:
    """Picks the loop order of a matmul's contracted axes: that of the left operand, which is read
    in place.

    The longest axis is cut, so that packed memory has long contiguous runs. With a matrix
    instruction the first axis is cut, since the depth of the instruction divides only the last one.

    Args:
        contracted: the contracted axes.
        left: the axes of the left operand.
        sizes: extents by axis.
        panel: lanes of a panel, and bytes of an element.
        cpu: the target, whose caches hold a panel.
        mma: the instruction, if there is one.
    """
    real = [n for n in contracted if sizes[n] > 1] or contracted[-1:]
    order = tuple(sorted(real, key=left.index))
    cut = order[0] if mma else max(order, key=lambda n: sizes[n])
    extents = [sizes[cut], *(sizes[n] for n in order if n != cut)]
    return ContractionOrder(order, cut, block_size(extents, *panel, cpu, mma.depth if mma else 1))
