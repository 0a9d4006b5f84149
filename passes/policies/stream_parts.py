"""Splits the streamed axis among programs of a GPU if there are too few rows to fill it.

A program loops over the whole axis for a tile of rows, so few rows leave multiprocessors idle. With
parts, each part of the axis is a program too, and a second kernel merges their states.
"""

from __future__ import annotations

from math import prod

from stack.ir.cost import cost
from stack.ir.node import Node
from stack.ir.stream_op import streamed_extent
from stack.ir.traits import contractions
from stack.passes.gpu_products.tile_choice import Product, may_round, tiles_of
from stack.passes.policies.lowerings import has_products, policy_of
from stack.passes.positions.streams import stream_index_maps, stream_shape
from stack.passes.tiling.frame import CannotTile, static
from stack.target import Gpu


def has_parts(stream: Node) -> bool:
    """True if parts of the axis can be computed separately: no result has the streamed axis."""
    try:
        return stream_shape(stream_index_maps(*stream.blocks), True).is_split
    except CannotTile:
        return False


def _rate(dot: Node, gpu: Gpu) -> float:
    """Returns the operations per second that a large dot of such operands reaches."""
    dtype = dot.args[0].dtype
    tiles = tiles_of(Product(0, 0, 0, rounds=may_round(dot)), dtype, gpu)
    return gpu.bf16_rate * min(1.0, max(t.rate for t in tiles))


def best_part(stream: Node, gpu: Gpu) -> int:
    """Picks the length of the parts of the streamed axis with which the stream is predicted to be
    fastest; 0 for no parts.
    """
    extent = streamed_extent(stream)
    if not isinstance(extent, int):
        return 0
    try:
        policy = policy_of(stream, gpu)
    except CannotTile:
        return 0  # pass `blocks` reports the reason
    assert policy is not None, "all streams on a GPU have one"
    schedule = policy.of(stream)
    axes = {a.name: a.extent for a in policy.domain.axes if a.name in ("b", "c", "m")}
    programs = prod(-(-extent // schedule.block(name, 1)) for name, extent in axes.items())
    found = cost(stream)
    reading = static(found.read) / gpu.memory_rate
    rates = [_rate(n, gpu) for n in contractions(stream.blocks[0].nodes)]
    summing = static(found.flops) / (gpu.few_rows_share * min(rates, default=gpu.bf16_rate))
    waits = reading > summing
    block, column = schedule.block("k"), bool(schedule.of("c"))
    if has_products(stream):
        block, column = gpu.parts.unit, False
    held = sum(static(s.tensor.size) * 4 for s in stream.blocks[0].results)

    def time(count: int) -> float:
        running = programs * count
        if column:  # loads of a tile do not wait for each other
            full = gpu.reducers * gpu.processors
            waves = -(-running // full)
            spent = reading * waves * full / running
            if count > 1 and extent % (count * block):
                spent *= gpu.parts.padded
            spent += waves * gpu.latency  # its first loads do wait
        elif waits:
            slots = gpu.slots * gpu.processors
            waves, left = divmod(running, slots)
            own = waves * slots + (max(left, gpu.readers * gpu.processors) if left else 0)
            spent = reading * own / running + waves * gpu.matmuls.hidden_waits * gpu.latency
        else:
            spent = summing * -(-running // gpu.processors) * gpu.processors / running
        if count > 1:
            spent += gpu.parts.launches * gpu.launch + 2 * held * count / gpu.memory_rate
        return spent

    most = min(gpu.parts.most, extent // (block * gpu.parts.units))
    best = min(range(1, most + 1), key=time, default=1)
    gain = gpu.parts.reading_gain if waits or column else gpu.parts.gain
    if best == 1 or time(best) > gain * time(1):
        return 0
    return -(-extent // (best * block)) * block
