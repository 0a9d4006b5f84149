"""Loops over long reduction axes on a GPU: block sizes, warps and registers.

Measured on an H100.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from stack.ir.node import Node
from stack.ir.traits import is_contraction, is_reduction
from stack.ir.warp_ops import WARP
from stack.passes.tiling.frame import power_of_two
from stack.target import Gpu


@dataclass(frozen=True)
class ReductionLoop:
    """The loop over a long axis.

    Attributes:
        block: the elements of a tile.
        warps: the warps of a program.
        ahead: the prefetch depth in iterations. 1 loads straight to registers; 0 leaves it to the
            backend.
        is_first: whether a second loop reads the axis again. A multiprocessor then has one program,
            so that the rows of all programs stay in the cache between the loops.
        is_whole: whether all tiles of the axis stay in registers.
    """

    block: int
    warps: int
    ahead: int = 0
    is_first: bool = False
    is_whole: bool = False

    @property
    def lanes(self) -> int:
        """The elements of a tile in a thread."""
        return self.block // (WARP * self.warps)


ACROSS = ReductionLoop(4096, 4, 3)  # columns
RAGGED = ReductionLoop(4096, 8, 1)  # columns of rows that 16-byte copies cannot prefetch
COLUMNS = ReductionLoop(2048, 4, 1)  # columns with states that are merged
ONCE = ReductionLoop(4096, 8, 3)  # rows that are read once
TWICE = ReductionLoop(16384, 32, 0, True)  # rows that a second loop reads again
PRIVATE = ReductionLoop(8192, 32, 0, True)  # with several running tiles
WHOLE = ReductionLoop(8192, 32, 0, True, True)  # rows whose tiles all stay in registers


def reduces_columns(node: Node) -> bool:
    """True for a reduction of an array that is contiguous along another axis."""
    if not is_reduction(node) or is_contraction(node):
        return False
    return node.args[0].tensor.rank - 1 not in node.attrs["axes"]


def shortest_streamed(is_column: bool, min_axis: int, gpu: Gpu) -> int:
    """Returns the shortest axis that does not fit in the registers of a kernel: `min_axis` along
    rows; columns are shorter.
    """
    return min(min_axis, gpu.rows.column_in_tile + 1) if is_column else min_axis


def whole_columns(extent: int, gpu: Gpu) -> ReductionLoop | None:
    """Returns the loop over columns whose tiles are in registers as a whole, with at least a warp
    of columns; None if they do not fit.
    """
    block = max(WHOLE.block, power_of_two(extent) * WARP)
    warps = block // gpu.rows.column_elements
    return ReductionLoop(block, warps, is_whole=True) if warps * WARP <= gpu.threads else None


def held_tiles(
    loop: ReductionLoop, extent: int, sources: Iterable[Node], running: int, gpu: Gpu
) -> int:
    """Picks how many tiles of a row stay in registers between two loops over it, so that the second
    one need not load them.

    Args:
        loop: the loop.
        extent: the elements of the row.
        sources: the arrays that the kernel reads.
        running: the number of tiles that the first loop carries; 0 if its iterations wait for each
            other, and should prefetch instead.
        gpu: the target.
    """
    registers = loop.lanes * _row_bytes(extent, sources) // 4
    count = -(-extent // loop.block)
    own = gpu.registers // gpu.threads
    room = max(0, own - gpu.rows.address_registers - loop.lanes * running)
    return min(room // registers, (count + 1) // 2) if registers and running else 0


def holds_whole(extent: int, sources: Iterable[Node], gpu: Gpu) -> bool:
    """True if all tiles of a row of each array in `sources` fit in registers."""
    count = -(-extent // WHOLE.block)
    registers = count * WHOLE.lanes * _row_bytes(extent, sources) // 4
    return 0 < registers <= gpu.rows.whole_share * gpu.registers // gpu.threads


def warps_of(elements: int, gpu: Gpu, least: int = 1) -> int:
    """Picks the warps of a program for a tile of so many elements."""
    return min(gpu.rows.warps, max(least, power_of_two(elements // gpu.rows.warp_elements)))


def busy(block: int, elements: int, least: int, gpu: Gpu) -> int:
    """Halves a block size until its programs are at least two for each multiprocessor, or until it
    is `least`. `elements` is the number of elements of all programs together."""
    while block > least and elements // block < 2 * gpu.processors:
        block //= 2
    return block


def why_ahead(ahead: int) -> str:
    """Returns the reason, shown to users, for a prefetch depth."""
    return "loads overlap with computation" if ahead > 1 else "loads go straight to registers"


def in_a_row(axes: Sequence[int]) -> bool:
    """True if several axes are adjacent and in order, so that one loop can run over them."""
    return len(axes) > 1 and list(axes) == list(range(axes[0], axes[0] + len(axes)))


def _row_bytes(extent: int, sources: Iterable[Node]) -> int:
    """Returns the bytes of one element of all those arrays in `sources` together whose rows have
    this extent.
    """
    return sum(
        p.dtype.bytes
        for p in sources
        if p.tensor.rank > 1 and p.shape[-1] == extent and p.tensor.size != extent
    )
