"""How large the tiles of a stream are: rows, and places in a step. Measured on an H100."""

from __future__ import annotations

import math

from stack.ir import ops
from stack.ir.dim import symbol
from stack.ir.node import Block, Node, topological
from stack.ir.stream_op import streamed_extent
from stack.ir.traits import (
    choice,
    contractions,
    is_contraction,
    is_reduction,
    reads_by_data,
    unconverted,
)
from stack.passes.positions.affine import affine
from stack.passes.positions.visible import hiding_selects
from stack.passes.steps.assumed import UNDERFLOW
from stack.passes.tiling.frame import power_of_two, static
from stack.rewrite.splat import splat

BUSY = 11  # ops on an element, from which a smaller tile leaves registers for them
LONG = 2048  # places: enough programs are left where each takes twice the rows
NARROW = 32  # places of a step that leave registers for parts of f32
MOST_WHOLE = 256  # of a streamed axis that is taken in one step


def extents(stream: Node) -> tuple[int, int]:
    """Rows of a tile, and places of the streamed axis in a step."""
    rows, step = _of_16_bits(stream)
    states = stream.blocks[0]
    sums = contractions(states.results)
    is_lone = len(contractions(states.nodes)) < 2
    if step <= NARROW or is_lone or not any(map(in_parts, sums)):
        return rows, step
    if max(static(s.shape[-1]) for s in sums) > 64:
        return 128, NARROW
    return 64, NARROW if len(sums) > 1 else step


def in_parts(dot: Node) -> bool:
    """Whether it is of f32: three parts of each operand, of 8 bits, take registers."""
    return dot.args[0].dtype.bits == 32


def _of_16_bits(stream: Node) -> tuple[int, int]:
    """Extents where operands have 16 bits."""
    states = stream.blocks[0]
    dots = contractions(states.nodes)
    if len(dots) > 2:
        # sums that are corrected pay for each step: fewer, larger tiles
        is_corrected = any(is_reduction(s) and s.attrs["kind"] == "max" for s in states.results)
        return (128, 64) if is_corrected else (64, 64)
    if len(dots) == 2 and len(contractions(states.results)) == 1:
        if any(_reads_elements(n) for n in states.nodes if reads_by_data(n)):
            return 64, 32
        scores = [d for d in dots if d not in states.results]
        factors = [a for d in dots for a in d.args if set(scores).isdisjoint(topological([a]))]
        multiplied = set(topological(factors))
        extent = static(streamed_extent(stream))
        alone = [p for p in states.params if p not in multiplied]
        # each row of such an array is read once: many rows share what they read of the others
        is_tall = any(static(p.tensor.size) >= extent**2 for p in alone)
        # without a mask no tile is computed that is hidden in part
        is_tall |= extent >= LONG and not _hides(states)
        if is_tall:
            return 128, 64
        return 64, _whole(stream, extent) or 64
    return (64, 32) if _work(stream) >= BUSY else (128, 64)


def _hides(states: Block) -> bool:
    """Whether a mask hides elements in nearly all rows: with -inf, or a large negative number."""
    if any(hiding_selects(states)):
        return True
    fills = (splat(unconverted(a)) for n in states.nodes if choice(n) for a in n.args[1:])
    return any(isinstance(f, int | float) and -math.inf < f < UNDERFLOW for f in fills)


def _reads_elements(gather: Node) -> bool:
    """Whether the places that it reads are data: no run of memory holds those of a tile."""
    for indices in gather.args[1:]:
        iter_vars = (symbol(f"d{i}", 0, static(s) - 1) for i, s in enumerate(indices.shape))
        if affine(indices, tuple(iter_vars)) is None:
            return True
    return False


def _whole(stream: Node, extent: int) -> int:
    """A step that takes the whole axis and is no longer than steps of 64 are together, or 0.

    Then nothing is corrected. Its scores take the registers: sums have to be narrow.
    """
    states = stream.blocks[0]
    step = power_of_two(extent)
    lanes = max(static(s.shape[-1]) for s in states.results if is_contraction(s))
    fits = 64 < step <= MOST_WHOLE and extent > step - 64 and lanes <= 64
    return step if fits and not _hides(states) else 0


def _work(stream: Node) -> int:
    """How many elementwise ops a step does on the elements of a tile of rows and places."""
    extent = streamed_extent(stream)
    return sum(
        n.tensor.rank > 1 and n.shape[-1] == extent and n.shape[-2] != 1
        for n in stream.blocks[0].nodes
        if ops.lookup(n.op).kind == "elementwise"
    )
