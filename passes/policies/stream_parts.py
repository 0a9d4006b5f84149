"""In how many parts a stream runs on a GPU: where its rows give too few programs, each has more.

A program walks along the whole axis for a tile of rows, and few rows keep few processors busy.
Parts of the axis are programs too; merging their states is one more kernel.
"""

from __future__ import annotations

from stack.ir.cost import cost
from stack.ir.dim import symbols
from stack.ir.node import Node
from stack.ir.stream_op import streamed_extent
from stack.ir.traits import contractions
from stack.passes.gpu_products.tile_choice import HIDDEN, Product, may_round, tiles_of
from stack.passes.policies.gpu_streams import ProductStreams, has_products
from stack.passes.policies.reduction_loops import PRIVATE
from stack.passes.policies.row_streams import RowStreams
from stack.passes.positions.stream_index_maps import stream_index_maps
from stack.passes.tiling.frame import CannotTile, static
from stack.target import Gpu

STAGE = 1.5  # launches in the time of one more kernel that waits for the one before it
READ_GAIN = 0.96  # of the time of one pass: what parts may take, where they wait for memory
GAIN = 0.8  # likewise, where they wait for products
UNIT = 128  # elements of an axis with a product that a part has a multiple of
LEAST = 2  # of those, that a part keeps at least
MOST = 64  # parts: merging reads them all at once


def has_parts(stream: Node) -> bool:
    """Whether each part of the axis may run by itself: no result is as long as the axis."""
    try:
        places = stream_index_maps(*stream.blocks)
    except CannotTile:
        return False
    kept = {s for place in places.states.values() for d in place for s in symbols(d)}
    long = {s for place in places.results for d in place for s in symbols(d) if s.high}
    return long <= kept


def stream_programs(stream: Node, gpu: Gpu) -> int:
    """The programs of the kernel of a stream. Raises CannotTile if it has none."""
    made = ProductStreams(stream, gpu) if has_products(stream) else RowStreams(stream, gpu)
    policy = made.policy()
    schedule = policy.of(stream)
    axes = {a.name: a.extent for a in policy.domain.axes}
    rows = -(-axes["m"] // schedule.block("m", 1)) if "m" in axes else 1
    return axes["b"] * rows


def _rate(dot: Node, gpu: Gpu) -> float:
    """Products for each second that a large dot of such operands reaches."""
    dtype = dot.args[0].dtype
    tiles = tiles_of(Product(0, 0, 0, rounds=may_round(dot)), dtype, gpu)
    return gpu.bf16_rate * min(1.0, max(t.rate for t in tiles))


def best_part(stream: Node, gpu: Gpu) -> int:
    """Elements of a part with which a stream is fastest; 0 where it is best as it is."""
    extent = streamed_extent(stream)
    if not isinstance(extent, int):
        return 0
    try:
        programs = stream_programs(stream, gpu)
    except CannotTile:
        return 0  # pass `blocks` says why
    found = cost(stream)
    reading = static(found.read) / gpu.memory_rate
    rates = [_rate(n, gpu) for n in contractions(stream.blocks[0].nodes)]
    summing = static(found.flops) / (gpu.few_rows_share * min(rates, default=gpu.bf16_rate))
    waits = reading > summing
    held = sum(static(s.tensor.size) * 4 for s in stream.blocks[0].results)

    def time(count: int) -> float:
        running = programs * count
        if waits:
            slots = gpu.slots * gpu.processors
            waves, left = divmod(running, slots)
            own = waves * slots + (max(left, gpu.readers * gpu.processors) if left else 0)
            spent = reading * own / running + waves * HIDDEN * gpu.latency
        else:
            spent = summing * -(-running // gpu.processors) * gpu.processors / running
        if count > 1:
            spent += STAGE * gpu.launch + 2 * held * count / gpu.memory_rate
        return spent

    unit = UNIT if has_products(stream) else PRIVATE.block
    most = min(MOST, extent // (unit * LEAST))
    best = min(range(1, most + 1), key=time, default=1)
    if best == 1 or time(best) > (READ_GAIN if waits else GAIN) * time(1):
        return 0
    return -(-extent // (best * unit)) * unit
