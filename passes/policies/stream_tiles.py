"""Tiles of streams with matmuls on a GPU: the rows of a program, and the elements of an iteration.

The tile sizes were measured on an H100.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from stack.ir import ops
from stack.ir.dim import symbol, symbols
from stack.ir.node import Block, Node, topological
from stack.ir.stream_op import streamed_extent
from stack.ir.traits import choice, contractions, is_reduction, reads_by_data, splat, unconverted
from stack.passes.positions.index_maps import affine
from stack.passes.positions.streams import index_in_pass, stream_index_maps
from stack.passes.positions.visibility import hiding_selects
from stack.passes.steps.assume import UNDERFLOW
from stack.passes.steps.tensorize import mixes_bf16
from stack.passes.tiling.frame import CannotTile, power_of_two, static
from stack.schedule import AxisSplit, Schedule
from stack.target import Gpu


def tile(rows: int, step: int, warps: int = 0, stages: int = 0) -> Schedule:
    """Returns the schedule of a tile: its rows, and the elements of an iteration."""
    return Schedule((AxisSplit("m", rows, "grid"), AxisSplit("k", step, "serial")), warps, stages)


MEASURED = (  # tiles of attention that compile to fast code; tuning tries them
    *(tile(128, 64, 8, 2), tile(128, 64, 8, 3), tile(128, 128, 8, 2)),
    *(tile(128, 32, 8, 3), tile(64, 64, 4, 3), tile(64, 32, 4, 3)),
    tile(64, 128, 4, 2),
)
TALLEST = max(schedule.block("m") for schedule in MEASURED)


def extents(stream: Node, gpu: Gpu) -> tuple[int, int]:
    """Picks the tile of a stream with matmuls on a GPU: its rows, and the elements of the streamed
    axis that one iteration takes.
    """
    rows, step = _of_16_bits(stream, gpu)
    states = stream.blocks[0]
    sums = contractions(states.results)
    narrow, is_lone = gpu.streams.narrow_step, len(contractions(states.nodes)) < 2
    if step <= narrow or is_lone or not any(map(in_parts, sums)):
        return rows, step
    if len(sums) == 1 and mixes_bf16(sums[0]):
        return 64, narrow
    if _columns(sums) > 64:
        return 128, narrow
    return 64, narrow if len(sums) > 1 else step


def _columns(sums: Iterable[Node]) -> int:
    """Returns the largest number of columns of some dots; a number has one."""
    return max(static(s.shape[-1]) if s.shape else 1 for s in sums)


def in_parts(dot: Node) -> bool:
    """True for a dot of f32 operands, which are split into three narrower numbers in registers."""
    return dot.args[0].dtype.bits == 32


def _of_16_bits(stream: Node, gpu: Gpu) -> tuple[int, int]:
    """Picks the tile size for 16-bit operands."""
    states = stream.blocks[0]
    dots = contractions(states.nodes)
    if len(dots) > 2:
        # each step rescales the sums: fewer steps with larger tiles
        is_corrected = any(is_reduction(s) and s.attrs["kind"] == "max" for s in states.results)
        if is_corrected:
            return 128, 64
        return (128, 128) if _shares_loads(stream, gpu) else (64, 64)
    if len(dots) == 2 and len(contractions(states.results)) == 1:
        if any(_reads_elements(n) for n in states.nodes if reads_by_data(n)):
            return 64, 32
        extent = static(streamed_extent(stream))
        # each row of such an array is read only once; more rows share loads of the other arrays
        is_tall = any(p.dtype.bits > 8 for p in tables(stream))
        # without a mask, no tile is partly hidden
        is_tall |= extent >= gpu.streams.long and not _hides(states)
        if is_tall:
            return 128, 64
        return 64, _whole(stream, extent, gpu) or 64
    return (64, 32) if _work(stream) >= gpu.streams.busy_ops else (128, 64)


def tables(stream: Node) -> list[Node]:
    """Returns the parameters of a stream's states that have an element for each row and streamed
    element, and that no dot multiplies: masks and biases.
    """
    extent = static(streamed_extent(stream))
    return [p for p in _unmultiplied(stream) if static(p.tensor.size) >= extent**2]


def _unmultiplied(stream: Node) -> list[Node]:
    """Returns the parameters of a stream's states that are no operands of dots."""
    states = stream.blocks[0]
    dots = contractions(states.nodes)
    scores = [d for d in dots if d not in states.results]
    factors = [a for d in dots for a in d.args if set(scores).isdisjoint(topological([a]))]
    multiplied = set(topological(factors))
    return [p for p in states.params if p not in multiplied]


def _reads_statistics(stream: Node) -> bool:
    """True if an iteration reads floats that have one element for each streamed element, as the
    gradient of keys reads the sums of rows of scores."""
    states, extent = stream.blocks[0], static(streamed_extent(stream))
    try:
        places = stream_index_maps(*stream.blocks).states
    except CannotTile:
        return False
    for p in _unmultiplied(stream):
        index = index_in_pass(states, places, p) if p.dtype.is_float else None
        is_streamed = any(s.name == "streamed" for d in index or () for s in symbols(d))
        if is_streamed and static(p.tensor.size) < extent**2:
            return True
    return False


def _shares_loads(stream: Node, gpu: Gpu) -> bool:
    """True if a stream of two tables has one wide sum over a long axis, as the gradient of queries:
    the registers hold larger tables beside it, and their rows share loads.

    They do not if each iteration reads statistics, whose addresses take registers: the gradient of
    keys then spills.
    """
    sums = contractions(stream.blocks[0].results)
    is_wide = _columns(sums) > 64 and not any(map(in_parts, sums))
    is_long = static(streamed_extent(stream)) >= gpu.streams.long
    return len(sums) == 1 and is_wide and is_long and not _reads_statistics(stream)


def _hides(states: Block) -> bool:
    """True if a mask with -inf, or with a large negative number, hides elements of nearly all rows
    of a stream, as a causal mask does.
    """
    if any(hiding_selects(states)):
        return True
    fills = (splat(unconverted(a)) for n in states.nodes if choice(n) for a in n.args[1:])
    return any(isinstance(f, int | float) and -math.inf < f < UNDERFLOW for f in fills)


def _reads_elements(gather: Node) -> bool:
    """True if the indices of a gather are data, so that the elements of one tile are scattered in
    memory.
    """
    for indices in gather.args[1:]:
        iter_vars = (symbol(f"d{i}", 0, static(s) - 1) for i, s in enumerate(indices.shape))
        if affine(indices, tuple(iter_vars)) is None:
            return True
    return False


def _whole(stream: Node, extent: int, gpu: Gpu) -> int:
    """Returns the elements of one iteration that covers the whole streamed axis, if that pads no
    more than iterations of 64 elements do; else 0.

    One step needs no rescaling. Its scores take most registers, so sums must be narrow.
    """
    states = stream.blocks[0]
    step = power_of_two(extent)
    lanes = _columns(contractions(states.results))
    fits = 64 < step <= gpu.streams.whole_step and extent > step - 64 and lanes <= 64
    return step if fits and not _hides(states) else 0


def _work(stream: Node) -> int:
    """Counts the elementwise ops of one iteration of a stream on tiles with both rows and streamed
    elements.
    """
    extent = streamed_extent(stream)
    return sum(
        n.tensor.rank > 1 and n.shape[-1] == extent and n.shape[-2] != 1
        for n in stream.blocks[0].nodes
        if ops.lookup(n.op).kind == "elementwise"
    )
