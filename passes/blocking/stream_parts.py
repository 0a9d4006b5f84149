"""In how many parts a stream runs on a GPU: where its rows give too few programs, each has more.

A program walks along the whole axis for a tile of rows, and few rows keep few processors busy.
Parts of the axis are programs too; merging their states is one more kernel.
"""

from __future__ import annotations

from math import prod

from stack.ir.cost import cost
from stack.ir.dim import symbols
from stack.ir.node import Node
from stack.ir.stream_op import streamed_extent
from stack.passes.blocking.reduce import APART
from stack.passes.blocking.stream import StreamTiler
from stack.passes.blocking.stream_places import stream_places
from stack.passes.blocking.tile_choice import MEMORY, PROCESSORS, PRODUCTS, TURN
from stack.passes.tiling.frame import CannotTile, static

SHARED = 2  # programs on a processor that wait for memory
RATE = 0.5  # of the products of a processor that a stream reaches
MERGE = 4e-6  # seconds of one more kernel
GAIN = 0.8  # of the time of one pass: what parts may take
UNIT = 128  # elements of an axis with a product that a part has a multiple of
LEAST = 2  # of those, that a part keeps at least
MOST = 64  # parts: merging reads them all at once


def has_parts(stream: Node) -> bool:
    """Whether each part of the axis may run by itself: no result is as long as the axis."""
    try:
        places = stream_places(*stream.blocks)
    except CannotTile:
        return False
    kept = {s for place in places.states.values() for d in place for s in symbols(d)}
    return all(symbols(d) <= kept for place in places.results for d in place)


def best_part(stream: Node) -> int:
    """Elements of a part with which a stream is fastest; 0 where it is best as it is."""
    extent = streamed_extent(stream)
    try:
        tiler = StreamTiler(stream)
        tiler.kernel()
    except CannotTile:
        return 0  # `blocks` says why
    if not isinstance(extent, int):
        return 0
    programs = prod(count for _, count in tiler.grid)
    found = cost(stream)
    reading, summing = static(found.read) / MEMORY, static(found.flops) / (RATE * PRODUCTS)
    slots = PROCESSORS * (SHARED if reading > summing else 1)  # programs that run at a time
    whole = max(reading, summing) * slots / programs  # of one program
    held = sum(static(s.tensor.size) * 4 for s in stream.blocks[0].results)

    def time(count: int) -> float:
        turns = -(-programs * count // slots)
        merge = MERGE + 2 * held * count / MEMORY if count > 1 else 0.0
        return turns * (whole / count + TURN) + merge

    unit = UNIT if tiler.has_dot else APART.block
    most = min(MOST, extent // (unit * LEAST))
    best = min(range(1, most + 1), key=time, default=1)
    if best == 1 or time(best) > GAIN * time(1):
        return 0
    return -(-extent // (best * unit)) * unit
