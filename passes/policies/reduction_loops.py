"""Loops over long reduction axes on a GPU: block sizes, warps and registers.

Measured on an H100 and an H200.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

from stack.ir.node import Node, topological
from stack.ir.traits import is_contraction, is_reduction
from stack.ir.warp_ops import VECTOR_BYTES, WARP
from stack.passes.tiling.frame import power_of_two, static
from stack.target import Gpu


@dataclass(frozen=True)
class ReductionLoop:
    """The loop over a long axis.

    If a second loop reads the axis again, a multiprocessor has one program, so that the rows of all
    programs stay in the cache between the loops.
    """

    block: int  # the elements of a tile
    warps: int  # of a program
    ahead: int = 0  # the prefetch depth; 1 loads straight to registers, 0 is up to the backend
    is_first: bool = False  # whether a second loop reads the axis again
    is_whole: bool = False  # whether all tiles of the axis stay in registers
    columns: int = 1  # of a tile with states that are merged, or rows
    is_unrolled: bool = False  # whether all iterations are written out


ACROSS = ReductionLoop(4096, 4, 3)  # columns
RAGGED = ReductionLoop(4096, 8, 1)  # columns of rows that 16-byte copies cannot prefetch
STATES = ReductionLoop(1024, 2, 4)  # columns with states that are merged
RAGGED_STATES = ReductionLoop(2048, 4, 1)  # the same, of rows that are not aligned
ONCE = ReductionLoop(4096, 8, 3)  # rows that are read once
TWICE = ReductionLoop(16384, 32, 0, True)  # rows that a second loop reads again
POSITIONS = ReductionLoop(128, 1, 1, columns=8, is_unrolled=True)  # short rows, with positions
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


def are_mates(reductions: Sequence[Node]) -> bool:
    """True if two of some reductions do not depend on each other, so that one loop can compute
    both.
    """
    behind = {n: set(topological([n.args[0]])) for n in reductions}
    pairs = combinations(reductions, 2)
    return any(a not in behind[b] and b not in behind[a] for a, b in pairs)


def is_aligned(array: Node) -> bool:
    """True if each row of an array begins at a multiple of 16 bytes."""
    return array.tensor.rank < 2 or static(array.shape[-1]) * array.dtype.bytes % VECTOR_BYTES == 0


def widest(sources: Iterable[Node]) -> int:
    """Returns the most bytes that an element of an array in `sources` has."""
    return max((s.dtype.bytes for s in sources if s.tensor.rank > 1), default=4)


def is_ragged(array: Node) -> bool:
    """True if each element of an array is loaded on its own, in less than four bytes: instructions
    take longer than memory does.
    """
    return array.dtype.bytes < 4 and not is_aligned(array)


def position_loop(extent: int, gpu: Gpu) -> ReductionLoop | None:
    """Picks the loop over a row of a ragged array in which a position is found; None if the row is
    too long to write out all iterations.

    A tile with the whole row is read twice, for the best value and for its position. A loop
    compares each element once.
    """
    count = gpu.rows.unrolled
    lanes = max(POSITIONS.block // POSITIONS.columns, power_of_two(extent) // count)
    rows, warps = max(1, POSITIONS.block // lanes), warps_of(lanes, gpu, each=WARP * count // 2)
    if lanes > STATES.block:
        return None
    return replace(POSITIONS, block=rows * lanes, warps=warps, columns=rows)


def column_loop(
    extent: int,
    columns: int,
    sources: Sequence[Node],
    gpu: Gpu,
    *,
    is_first: bool,
    has_positions: bool,
) -> ReductionLoop:
    """Picks the loop over `columns` columns of `extent` elements with states that are merged.

    Rows that 16-byte copies cannot prefetch are loaded straight to registers, and so are columns of
    few tiles. Columns that are short stay in registers as a whole: those of such rows, those that a
    thread can have, and those that a second loop reads again (`is_first`). Positions in ragged
    columns are found in a loop, as in rows.
    """
    # of one axis: several rows of the program side by side, as one
    arrays = [s for s in sources if s.tensor.rank > 1] or [*sources]
    sizes, room = gpu.rows, gpu.rows.prefetch_share * gpu.shared_bytes
    tile = sum(STATES.block * a.dtype.bytes for a in arrays)
    is_prefetched = STATES.ahead * tile <= room and all(map(is_aligned, arrays))
    walks = is_prefetched and not is_first
    if has_positions and any(map(is_ragged, arrays)):
        # few elements for each thread, of which it has the best values and their positions
        side = well_filled(sizes.columns, columns)
        block = max(RAGGED_STATES.block // 4, 4 * side)
        return replace(RAGGED_STATES, block=block, warps=side // WARP, columns=side)
    if extent <= (sizes.column_in_tile if walks else sizes.whole_column):
        return _whole_columns(extent, arrays, gpu)
    if not is_prefetched:
        return replace(RAGGED_STATES, columns=well_filled(sizes.walked_columns, columns))
    rows = STATES.block // sizes.walked_columns
    if extent <= STATES.ahead * rows:
        return replace(STATES, ahead=1, columns=sizes.walked_columns)
    # long columns of 16-bit elements have few programs, and few bytes in flight
    more = 2 if extent >= sizes.long_column and all(a.dtype.bytes < 4 for a in arrays) else 1
    made = replace(STATES, block=more * STATES.block, warps=more * STATES.warps)
    return replace(made, columns=sizes.walked_columns)


def _whole_columns(extent: int, sources: Sequence[Node], gpu: Gpu) -> ReductionLoop:
    """Returns the loop over columns whose tiles are in registers as a whole, with at least a warp
    of columns.
    """
    sizes, rows = gpu.rows, power_of_two(extent)
    run = whole_column_run(rows, sources, gpu) if rows <= sizes.column_in_tile else 0
    if run:
        columns = max(run, sizes.tile // rows)
        return ReductionLoop(rows * columns, columns // run, is_whole=True, columns=columns)
    block = max(min(WHOLE.block, rows * sizes.columns), rows * WARP)
    warps = max(1, block // sizes.column_elements)
    return ReductionLoop(block, warps, is_whole=True, columns=block // rows)


def whole_column_run(rows: int, sources: Iterable[Node], gpu: Gpu) -> int:
    """Returns how many columns a warp has if a tile has all `rows` of its columns: one run of
    16-byte loads, so that each thread has whole columns and no values move between threads. 0 if
    the registers of a thread have no room for them.
    """
    arrays = [s for s in sources if s.tensor.rank > 1]
    own = VECTOR_BYTES // widest(arrays) if all(map(is_aligned, arrays)) else 1
    room = gpu.rows.thread_registers - gpu.rows.address_registers
    return WARP * own if rows * own * max(1, len(arrays)) <= room else 0


def held_tiles(
    block: int, warps: int, extent: int, sources: Iterable[Node], running: int, gpu: Gpu
) -> int:
    """Picks how many tiles of a row stay in registers between two loops over it, so that the second
    one need not load them.

    Args:
        block: the elements of a tile.
        warps: the warps of a program.
        extent: the elements of the row.
        sources: the arrays that the kernel reads.
        running: the number of tiles that the first loop carries; 0 if its iterations wait for each
            other, and should prefetch instead.
        gpu: the target.
    """
    lanes, count = block // (WARP * warps), -(-extent // block)
    registers = lanes * _row_bytes(extent, sources) // 4
    own = gpu.registers // gpu.threads
    room = max(0, own - gpu.rows.address_registers - lanes * running)
    return min(room // registers, (count + 1) // 2) if registers and running else 0


def well_filled(most: int, extent: int) -> int:
    """Picks the largest block of columns, at least a warp, that leaves at most a quarter as many
    lanes idle as there are columns; `most` if none does."""
    blocks = [most >> i for i in range(most.bit_length()) if most >> i >= WARP]
    return next((b for b in blocks if -extent % b <= extent // 4), most)


def holds_whole(extent: int, sources: Iterable[Node], gpu: Gpu) -> bool:
    """True if all tiles of a row of each array in `sources` fit in registers."""
    count = -(-extent // WHOLE.block)
    lanes = WHOLE.block // (WARP * WHOLE.warps)
    registers = count * lanes * _row_bytes(extent, sources) // 4
    return 0 < registers <= gpu.rows.whole_share * gpu.registers // gpu.threads


def warps_of(elements: int, gpu: Gpu, least: int = 1, each: int = 0) -> int:
    """Picks the warps of a program for a tile of so many elements; `each`: those of a warp."""
    each = each or gpu.rows.warp_elements
    return min(gpu.rows.warps, max(least, power_of_two(max(1, elements // each))))


def busy(block: int, elements: int, least: int, gpu: Gpu) -> int:
    """Halves a block size until its programs are at least two for each multiprocessor, or until it
    is `least`. `elements` is the number of elements of all programs together."""
    while block > least and elements // block < 2 * gpu.processors:
        block //= 2
    return block


def _row_bytes(extent: int, sources: Iterable[Node]) -> int:
    """Returns the bytes of one element of all those arrays in `sources` together whose rows have
    this extent.
    """
    return sum(
        p.dtype.bytes
        for p in sources
        if p.tensor.rank > 1 and p.shape[-1] == extent and p.tensor.size != extent
    )
